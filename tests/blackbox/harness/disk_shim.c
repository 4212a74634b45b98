/* Notes how much of each file a loss of power would leave. Preloaded, it writes down the length of a file whenever that
 * was flushed to the disk: pairs of inode and length in the file that LOCK_DISK_FLUSHED names. Whoever calls fsync has
 * its answer only once the length is written down. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES 512

struct flushed {
    uint64_t inode;
    uint64_t length;
};

static struct flushed *table;

__attribute__((constructor)) static void map_table(void) {
    const char *path = getenv("LOCK_DISK_FLUSHED");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, FILES * sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) table = page;
    close(fd);
}

static void note(const struct stat *file) {
    for (int i = 0; table && i < FILES; i++) {
        uint64_t none = 0;
        uint64_t inode = (uint64_t)file->st_ino;
        __atomic_compare_exchange_n(&table[i].inode, &none, inode, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&table[i].inode, __ATOMIC_SEQ_CST) != inode) continue;
        __atomic_store_n(&table[i].length, (uint64_t)file->st_size, __ATOMIC_SEQ_CST);
        return;
    }
}

static int flush(long how, int fd) {
    struct stat file;
    int known = fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
    int result = (int)syscall(how, fd);
    if (result == 0 && known) note(&file);
    return result;
}

int fsync(int fd) {
    return flush(SYS_fsync, fd);
}

int fdatasync(int fd) {
    return flush(SYS_fdatasync, fd);
}
