// SPDX-License-Identifier: Apache-2.0
// What the thread sanitizer must be told: every fiber is a thread of its own, and the only order
// between two of them is the one that the emulated barrier gives. Empty in other builds.
#pragma once

#ifdef __SANITIZE_THREAD__
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* place);
void __tsan_release(void* place);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace simt::sanitizers {

#ifdef __SANITIZE_THREAD__
inline void* current_fiber() { return __tsan_get_current_fiber(); }
inline void* create_fiber() { return __tsan_create_fiber(0); }
inline void destroy_fiber(void* fiber) { __tsan_destroy_fiber(fiber); }
// Inlined whatever the optimisation: its frame would begin on one fiber and end on another.
[[gnu::always_inline]] inline void switch_to(void* fiber) {
  constexpr unsigned kNoHappensBefore = 1;
  __tsan_switch_to_fiber(fiber, kNoHappensBefore);
}
inline void release(void* place) { __tsan_release(place); }
inline void acquire(void* place) { __tsan_acquire(place); }
#else
inline void* current_fiber() { return nullptr; }
inline void* create_fiber() { return nullptr; }
inline void destroy_fiber(void*) {}
inline void switch_to(void*) {}
inline void release(void*) {}
inline void acquire(void*) {}
#endif

// The emulator's own bookkeeping, which one fiber writes and another reads, is no race of a kernel.
struct Unwatched {
#ifdef __SANITIZE_THREAD__
  Unwatched() {
    AnnotateIgnoreReadsBegin("", 0);
    AnnotateIgnoreWritesBegin("", 0);
  }
  ~Unwatched() {
    AnnotateIgnoreWritesEnd("", 0);
    AnnotateIgnoreReadsEnd("", 0);
  }
#else
  Unwatched() {}
#endif
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace simt::sanitizers
