/* A disk for the tests, put below the broker by LD_PRELOAD. Of the files below PINNACE_TEST_DISK_ROOT it writes down in PINNACE_TEST_DISK/log
 * what was written, what was synced and how directories changed, and keeps every file by a second link in PINNACE_TEST_DISK/kept, so that
 * what a power cut may leave can be made from both. Calls fail where PINNACE_TEST_DISK/fault says so. Nothing is really synced.
 *
 * The log, one event a line, paths from the root:
 *   create INODE PATH | mkdir INODE PATH | rename FROM TO | unlink PATH
 *   write INODE FROM TO | truncate INODE LENGTH
 *   syncing INODE THREAD, then: synced INODE THREAD | unsynced INODE THREAD      (of files and directories)
 *   fault CALL PATH
 *   unknown CALL PATH                                                            (what this disk does not model)
 *
 * The fault file, one fault a line: CALL ERRNO SKIP COUNT PART
 *   Of the calls of that kind (open, write, read, sync, rename) to files whose path has this part (*: any), SKIP succeed and then COUNT fail
 *   (-1: all). ERRNO 0 is a short write instead. A file with another text begins anew.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))
#define DESCRIPTORS (1 << 16)
#define FAULTS 8
#define SYNC_MICROS 300

static void *real(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

/* What is open, by descriptor. */
static struct {
    ino_t inode;
    char *path;
} files[DESCRIPTORS];

/* The path below the root; "" is the root itself. */
static const char *below(const char *path) {
    const char *root = getenv("PINNACE_TEST_DISK_ROOT");
    size_t len = root ? strlen(root) : 0;
    if (!len || strncmp(path, root, len) || (path[len] && path[len] != '/')) return NULL;
    return path[len] ? path + len + 1 : path + len;
}

static const char *opened(int fd) {
    return fd >= 0 && fd < DESCRIPTORS ? files[fd].path : NULL;
}

static int in_home(char *out, const char *name) {
    return snprintf(out, PATH_MAX, "%s/%s", getenv("PINNACE_TEST_DISK"), name);
}

static void say(const char *format, ...) {
    static int log = -1;
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    char path[PATH_MAX], line[2 * PATH_MAX];
    int error = errno;
    pthread_mutex_lock(&opening);
    if (log < 0) {
        in_home(path, "log");
        log = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    pthread_mutex_unlock(&opening);
    va_list values;
    va_start(values, format);
    int len = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (REAL(write)(log, line, len) != len) abort();
    errno = error;
}

/* Whether this call is to fail: 0, an error number, or -1 for a short write. */
static int fault(const char *call, const char *path) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char known[1024];
    static long calls[FAULTS];
    char name[PATH_MAX], text[sizeof known] = "";
    int found = 0, error = errno;
    in_home(name, "fault");
    int file = REAL(open)(name, O_RDONLY | O_CLOEXEC);
    errno = error;
    if (file < 0) return 0;
    pthread_mutex_lock(&lock);
    if (REAL(read)(file, text, sizeof text - 1) < 0) abort();
    REAL(close)(file);
    if (strcmp(text, known)) {
        strcpy(known, text);
        memset(calls, 0, sizeof calls);
    }
    char *rest, *line = strtok_r(text, "\n", &rest);
    for (int i = 0; i < FAULTS && line && !found; i++, line = strtok_r(NULL, "\n", &rest)) {
        char kind[16], part[64];
        long number, skip, count;
        if (sscanf(line, "%15s %ld %ld %ld %63s", kind, &number, &skip, &count, part) != 5) abort();
        if (strcmp(kind, call) || (strcmp(part, "*") && !strstr(path, part))) continue;
        long before = calls[i]++;
        if (before >= skip && (count < 0 || before < skip + count)) found = number ? (int)number : -1;
    }
    pthread_mutex_unlock(&lock);
    if (found) say("fault %s %s\n", call, path);
    errno = error;
    return found;
}

/* As `fault`, for calls that cannot be short. */
static int fails(const char *call, const char *path) {
    int error = path ? fault(call, path) : 0;
    if (error > 0) errno = error;
    return error > 0;
}

static int open_at(int dir, const char *path, int flags, mode_t mode) {
    const char *name = path[0] == '/' ? below(path) : NULL;
    struct stat stat;
    if (!name) return REAL(openat)(dir, path, flags, mode);
    if (fails("open", name)) return -1;
    if (flags & O_TRUNC && !lstat(path, &stat) && stat.st_size) say("unknown truncation %s\n", name);
    int fd = REAL(openat)(dir, path, flags, mode);
    if (fd < 0 || fd >= DESCRIPTORS || fstat(fd, &stat)) return fd;
    files[fd].inode = stat.st_ino;
    files[fd].path = strdup(name);
    char kept[PATH_MAX], number[32];
    snprintf(number, sizeof number, "kept/%lu", (unsigned long)stat.st_ino);
    in_home(kept, number);
    /* One that is not kept is new, or the process that made it was killed over it. */
    if (S_ISREG(stat.st_mode) && access(kept, F_OK)) {
        say("create %lu %s\n", (unsigned long)stat.st_ino, name);
        if (REAL(link)(path, kept) && errno != EEXIST) abort();
    }
    return fd;
}

#define OPEN(name, from, ...)                           \
    int name(__VA_ARGS__, int flags, ...) {             \
        va_list values;                                 \
        va_start(values, flags);                        \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(values, mode_t) : 0; \
        va_end(values);                                 \
        return open_at(from, path, flags, mode);        \
    }
OPEN(open, AT_FDCWD, const char *path)
OPEN(open64, AT_FDCWD, const char *path)
OPEN(openat, dir, int dir, const char *path)
OPEN(openat64, dir, int dir, const char *path)

static void closing(int fd) {
    if (opened(fd)) {
        free(files[fd].path);
        files[fd].path = NULL;
    }
}

int close(int fd) {
    closing(fd);
    return REAL(close)(fd);
}

int fclose(FILE *file) {
    closing(fileno(file));
    return REAL(fclose)(file);
}

/* How many bytes of `count` are to be written: 0 with errno set if the call fails. */
static size_t writable(int fd, size_t count) {
    int error = count ? fault("write", files[fd].path) : 0;
    if (error > 0) {
        errno = error;
        return 0;
    }
    return error < 0 ? (count + 1) / 2 : count;
}

static ssize_t written(int fd, ssize_t count, off_t from) {
    if (count > 0) say("write %lu %ld %ld\n", (unsigned long)files[fd].inode, (long)from, (long)from + count);
    return count;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (!opened(fd) || !count) return REAL(write)(fd, bytes, count);
    if (!(count = writable(fd, count))) return -1;
    ssize_t done = REAL(write)(fd, bytes, count);
    return written(fd, done, lseek(fd, 0, SEEK_CUR) - done);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t from) {
    if (!opened(fd) || !count) return REAL(pwrite)(fd, bytes, count, from);
    if (!(count = writable(fd, count))) return -1;
    return written(fd, REAL(pwrite)(fd, bytes, count, from), from);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t from) {
    return pwrite(fd, bytes, count, from);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (opened(fd)) say("unknown writev %s\n", opened(fd));
    return REAL(writev)(fd, parts, count);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t from) {
    if (opened(fd)) say("unknown pwritev %s\n", opened(fd));
    return REAL(pwritev)(fd, parts, count, from);
}

ssize_t pread(int fd, void *bytes, size_t count, off_t from) {
    return fails("read", opened(fd)) ? -1 : REAL(pread)(fd, bytes, count, from);
}

ssize_t pread64(int fd, void *bytes, size_t count, off_t from) {
    return pread(fd, bytes, count, from);
}

ssize_t read(int fd, void *bytes, size_t count) {
    return fails("read", opened(fd)) ? -1 : REAL(read)(fd, bytes, count);
}

int ftruncate(int fd, off_t length) {
    if (opened(fd)) say("truncate %lu %ld\n", (unsigned long)files[fd].inode, (long)length);
    return REAL(ftruncate)(fd, length);
}

int ftruncate64(int fd, off_t length) {
    return ftruncate(fd, length);
}

int fallocate(int fd, int mode, off_t from, off_t len) {
    if (opened(fd) && !(mode & FALLOC_FL_KEEP_SIZE)) say("unknown fallocate %s\n", opened(fd));
    return REAL(fallocate)(fd, mode, from, len);
}

int fallocate64(int fd, int mode, off_t from, off_t len) {
    return fallocate(fd, mode, from, len);
}

void *mmap(void *at, size_t len, int protection, int flags, int fd, off_t from) {
    const char *path = flags & MAP_SHARED && protection & PROT_WRITE ? opened(fd) : NULL;
    if (path) say("unknown mmap %s\n", path);
    return REAL(mmap)(at, len, protection, flags, fd, from);
}

void *mmap64(void *at, size_t len, int protection, int flags, int fd, off_t from) {
    return mmap(at, len, protection, flags, fd, from);
}

static int sync_of(int fd) {
    unsigned long inode = files[fd].inode;
    int thread = (int)syscall(SYS_gettid);
    say("syncing %lu %d\n", inode, thread);
    usleep(SYNC_MICROS);
    int failed = fails("sync", files[fd].path);
    say("%s %lu %d\n", failed ? "unsynced" : "synced", inode, thread);
    return failed ? -1 : 0;
}

int fsync(int fd) {
    return opened(fd) ? sync_of(fd) : REAL(fsync)(fd);
}

int fdatasync(int fd) {
    return opened(fd) ? sync_of(fd) : REAL(fdatasync)(fd);
}

/* It starts the writing of pages, and promises nothing. */
int sync_file_range(int fd, off_t from, off_t len, unsigned flags) {
    return opened(fd) ? 0 : REAL(sync_file_range)(fd, from, len, flags);
}

int rename(const char *from, const char *to) {
    const char *old = below(from), *new = below(to);
    if (!old && !new) return REAL(rename)(from, to);
    if (!old || !new) say("unknown rename %s\n", old ? old : new);
    if (fails("rename", old ? old : new)) return -1;
    int result = REAL(rename)(from, to);
    if (!result && old && new) say("rename %s %s\n", old, new);
    return result;
}

int unlink(const char *path) {
    const char *name = below(path);
    int result = REAL(unlink)(path);
    if (!result && name) say("unlink %s\n", name);
    return result;
}

int link(const char *from, const char *to) {
    const char *name = below(to);
    struct stat stat;
    int result = REAL(link)(from, to);
    if (!result && name && !lstat(to, &stat)) say("create %lu %s\n", (unsigned long)stat.st_ino, name);
    return result;
}

int mkdir(const char *path, mode_t mode) {
    const char *name = below(path);
    struct stat stat;
    int result = REAL(mkdir)(path, mode);
    if (!result && name && !lstat(path, &stat)) say("mkdir %lu %s\n", (unsigned long)stat.st_ino, name);
    return result;
}
