// SPDX-License-Identifier: Apache-2.0
// A fiber: a stack that is left and resumed explicitly, without a system call on x86-64.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "emulator/sanitizers.h"

#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_X86_64  // otherwise, or if a test asks for it, ucontext
#else
#include <ucontext.h>
#endif

namespace simt {

#ifdef SIMT_X86_64
// Saves what a call must preserve on this stack, stores the stack pointer in *from, and resumes the
// stack `to`, which was left in the same way. Ends in a jump, since the processor would mispredict
// a `ret` to a caller that has not called on this stack.
[[gnu::naked, gnu::noipa, gnu::no_sanitize_thread, gnu::no_sanitize_address]] inline void
switch_stacks(void** /*from*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n popq %rcx\n jmp "
      "*%rcx\n");
}
#endif

class Fiber {
 public:
  // The stack on which the constructing thread runs.
  Fiber() { sanitizers_.race_fiber = sanitizers::current_fiber(); }

  // A new stack, on which `main` begins at the first switch. `main` never returns and the stack is
  // never freed: the scheduler keeps its fibers as long as the program runs.
  explicit Fiber(void (*main)()) {
    constexpr size_t kStackBytes = 128 << 10, kGuardBytes = 64 << 10;
    char* const memory =
        static_cast<char*>(mmap(nullptr, kGuardBytes + kStackBytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    char* const stack = memory + kGuardBytes;  // an overflow faults
    if (memory == MAP_FAILED || mprotect(stack, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
      std::perror("simt emulator: stack of a fiber");
      std::abort();
    }
    sanitizers_.race_fiber = sanitizers::create_fiber();
    sanitizers_.bottom = stack;
    sanitizers_.size = kStackBytes;
#ifdef SIMT_X86_64
    // Staggers the tops within a page, since otherwise all stacks would compete for the same cache
    // lines.
    static unsigned made = 0;
    constexpr int kSavedRegisters = 6, kColors = 32, kColorBytes = 320;
    void** top = reinterpret_cast<void**>(stack + kStackBytes - made++ % kColors * kColorBytes);
    *--top = nullptr;  // the return address of `main`; the stack is aligned as after a call
    *--top = reinterpret_cast<void*>(main);
    for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
    pointer_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = kStackBytes;
    makecontext(&context_, main, 0);
#endif
  }

  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Switches from `from`, on which the caller runs, to `to`; returns when something switches back.
  [[gnu::always_inline]] static void switch_to(Fiber& from, Fiber& to) {
#ifdef SIMT_X86_64
    void* const pointer = to.pointer_;  // read while this is still `from` to the race detector
    sanitizers::before_switch(from.sanitizers_, to.sanitizers_);
    switch_stacks(&from.pointer_, pointer);
#else
    sanitizers::before_switch(from.sanitizers_, to.sanitizers_);
    swapcontext(&from.context_, &to.context_);
#endif
    sanitizers::after_switch(from.sanitizers_, to.sanitizers_);
  }

  // Called first by `main`, after it was begun by a switch from `from`.
  [[gnu::always_inline]] void began_from(Fiber& from) {
    sanitizers::after_switch(sanitizers_, from.sanitizers_);
  }

 private:
  sanitizers::Stack sanitizers_;
#ifdef SIMT_X86_64
  void* pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace simt
