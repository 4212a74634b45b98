/* A server loads modules with RTLD_DEEPBIND, so that they find their own symbols first. AddressSanitizer refuses that:
 * its own functions have to come before all others. Preloaded, this takes the flag away. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *dlopen(const char *file, int mode) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(file, mode & ~RTLD_DEEPBIND);
}
