/* Steps the wall clock of one process. Preloaded, it adds an offset to every way of asking for the time of day and
 * leaves the monotonic clocks alone, as a real clock step does. The offset is in microseconds, in the file that
 * LOCK_CLOCK_OFFSET names; the test writes it while the process runs. Only long-stable symbols are used, so the shim
 * also loads into a process that brings its own, different C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000L
#define SECOND_US 1000000L

static const volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("LOCK_CLOCK_OFFSET");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *offset_us, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) offset_us = page;
    close(fd);
}

/* The raw call cannot come back to this file, as the C library's functions would. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result != 0 || !offset_us || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    int64_t offset = *offset_us;
    now->tv_sec += offset / SECOND_US;
    now->tv_nsec += offset % SECOND_US * 1000;
    if (now->tv_nsec < 0) now->tv_nsec += SECOND_NS, now->tv_sec--;
    if (now->tv_nsec >= SECOND_NS) now->tv_nsec -= SECOND_NS, now->tv_sec++;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}

/* Valkey opens modules so that they bind to the C library before anything preloaded: undone, or the module would keep
 * the true time while the server's is stepped. */
void *dlopen(const char *file, int mode) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(file, mode & ~RTLD_DEEPBIND);
}
