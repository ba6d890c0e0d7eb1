// SPDX-License-Identifier: Apache-2.0
// How the sanitizers are informed about fibers. Empty in other builds.
//   thread   every fiber is a thread of its own, and two of them are ordered only by barriers and
//            by atomics that acquire and release
//   address  a switch changes the stack
#pragma once
#include <cstddef>

#ifdef __SANITIZE_THREAD__
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* place);
void __tsan_release(void* place);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();

// A process with more than one thread would sleep for a second at its end, to detect races with
// exit handlers. No fiber needs that. With the shortest history a fiber is made in half the time;
// of an access that was long ago a report may then lack the stack: TSAN_OPTIONS=history_size=7 has
// it.
[[gnu::used]] inline const char* __tsan_default_options() {
  return "atexit_sleep_ms=0:history_size=0";
}
}
#endif
#ifdef __SANITIZE_ADDRESS__
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, size_t* old_size);
}
#endif

#define SIMT_UNWATCHED __attribute__((no_sanitize("thread")))

namespace simt::sanitizers {

// A stack, as the sanitizers identify it.
struct Stack {
  void* race_fiber = nullptr;    // the race detector's name for it
  const void* bottom = nullptr;  // for the address sanitizer, with the size
  size_t size = 0;
  void* fake_stack = nullptr;
};

#ifdef __SANITIZE_THREAD__
inline void* current_fiber() { return __tsan_get_current_fiber(); }
inline void* create_fiber() { return __tsan_create_fiber(0); }
inline void release(void* place) { __tsan_release(place); }
inline void acquire(void* place) { __tsan_acquire(place); }
#else
inline void* current_fiber() { return nullptr; }
inline void* create_fiber() { return nullptr; }
inline void release(void*) {}
inline void acquire(void*) {}
#endif

// Call right before a switch, on the old stack. Always inlined: otherwise its frame would begin on
// one fiber and end on another.
[[gnu::always_inline]] inline void before_switch([[maybe_unused]] Stack& from,
                                                 [[maybe_unused]] Stack& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
#ifdef __SANITIZE_THREAD__
  constexpr unsigned kNoHappensBefore = 1;
  __tsan_switch_to_fiber(to.race_fiber, kNoHappensBefore);
#endif
}

// Call right after a switch from `from`, on the stack of `self`, which has just been resumed.
[[gnu::always_inline]] inline void after_switch([[maybe_unused]] Stack& self,
                                                [[maybe_unused]] Stack& from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(self.fake_stack, &from.bottom, &from.size);
#endif
}

// A scope for the emulator's own bookkeeping, which several fibers access without racing. Release
// and acquire work in it, too. For a function that does only bookkeeping and is called in such a
// scope, SIMT_UNWATCHED before its body saves the race detector's time.
struct Unwatched {
#ifdef __SANITIZE_THREAD__
  Unwatched() { __tsan_ignore_thread_begin(); }
  ~Unwatched() { __tsan_ignore_thread_end(); }
#else
  Unwatched() {}
#endif
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace simt::sanitizers
