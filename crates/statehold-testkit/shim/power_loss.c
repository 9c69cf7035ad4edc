/*
 * power_loss: an LD_PRELOAD shim that simulates power loss and fsync failure for the files below
 * one directory.
 *
 * What it models.  Every write to a tracked file really happens, so the program sees what it would
 * see in the page cache.  Beside it the shim keeps the old contents of every 512-byte sector changed
 * since the file's last successful fsync or fdatasync.  At the chosen operation, before performing
 * it, the shim puts the files back to a state a disk could hold and ends the process with status 86.
 * A sector on the disk holds either its synced contents or its contents after one of the writes
 * since, because the page cache hands over whole sectors; a write can be torn between sectors, never
 * within one, and sectors arrive in any order.  A file whose directory was not fsynced since its
 * creation may vanish.  A failed fsync loses the data for good, as on Linux, where the failed pages
 * are marked clean: a later fsync succeeds without writing them.
 *
 * What it does not model.  Unlinks and renames are durable at once, even without an fsync of the
 * directory, and so are directories themselves; hard links are not followed.  Writes through mmap,
 * fallocate, copy_file_range, sendfile, stdio, io_uring or raw system calls are not seen, and sync,
 * syncfs and sync_file_range make nothing durable.  A forked child is not supported.  What is on the
 * disk when the process first opens a file counts as synced.
 *
 * Environment, read once:
 *   POWER_LOSS_DIR   The absolute directory; without it the shim is inert.  Files ending in "-shm",
 *                    ".lock" or ".acks" are not tracked.
 *   POWER_LOSS_AT    The number of the operation at which the power is cut, counted from 1.  Writes,
 *                    truncations, syncs (of files and of directories), unlinks and renames count.
 *   POWER_LOSS_SEED  With 0, the default, nothing unsynced survives; any other number chooses a
 *                    repeatable subset that does.
 *   FSYNC_FAIL_AT    The number of the fsync or fdatasync of a tracked file that fails with EIO.
 *
 * If the shim itself cannot go on, it says so and ends the process with status 87, because a run
 * that was only half tracked would prove nothing.
 *
 * Build: cc -shared -fPIC -O2 -Wall -Wextra -o libpower_loss.so power_loss.c -ldl -lpthread
 */

/* Fortified headers define open() inline, which would clash with the definitions below. */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "The plain and the 64-bit calls must be the same calls.");

enum { SECTOR = 512, EXIT_CUT = 86, EXIT_BROKEN = 87 };

/* One sector of one unsynced operation.  The pieces of one operation are adjacent. */
struct piece {
    uint64_t op;
    off_t sector;
    off_t old_len, new_len;      /* The length of the file before and after the operation. */
    bool truncation;             /* A change of length by ftruncate or O_TRUNC, not a write. */
    bool lost;                   /* An fsync failed since, so no later fsync writes this sector. */
    unsigned char bytes[SECTOR]; /* The contents before; once undone, the contents after. */
};

struct file {
    struct file *next;
    dev_t dev;
    ino_t ino;
    int fd;        /* The shim's own descriptor: it can read and write, and it pins the inode. */
    bool unlisted; /* Created, and its directory was not fsynced since. */
    struct piece *pieces;
    size_t count, capacity;
};

#define REAL_FUNCTIONS(X)                                              \
    X(int, openat, (int, const char *, int, ...))                      \
    X(ssize_t, write, (int, const void *, size_t))                     \
    X(ssize_t, pwrite, (int, const void *, size_t, off_t))             \
    X(ssize_t, writev, (int, const struct iovec *, int))               \
    X(ssize_t, pwritev, (int, const struct iovec *, int, off_t))       \
    X(ssize_t, pwritev2, (int, const struct iovec *, int, off_t, int)) \
    X(int, ftruncate, (int, off_t))                                    \
    X(int, fsync, (int))                                               \
    X(int, fdatasync, (int))                                           \
    X(int, unlinkat, (int, const char *, int))                         \
    X(int, renameat, (int, const char *, int, const char *))

#define DECLARE(type, name, args) static type(*real_##name) args;
REAL_FUNCTIONS(DECLARE)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Set while this thread is in the shim: a signal handler that writes then goes straight through. */
static _Thread_local bool inside;

static const char *dir_setting;
static char root[PATH_MAX]; /* The resolved directory; empty until it exists. */
static uint64_t cut_at, seed, fail_at;
static uint64_t operations, file_syncs, serial, random_state;
static struct file *files;

static _Noreturn void die(const char *what) {
    dprintf(STDERR_FILENO, "power_loss: %s: %s\n", what, strerror(errno));
    _exit(EXIT_BROKEN);
}

static uint64_t number(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

static void init(void) {
#define RESOLVE(type, name, args) real_##name = (type(*) args)dlsym(RTLD_NEXT, #name);
    REAL_FUNCTIONS(RESOLVE)
    dir_setting = getenv("POWER_LOSS_DIR");
    cut_at = number("POWER_LOSS_AT");
    seed = number("POWER_LOSS_SEED");
    fail_at = number("FSYNC_FAIL_AT");
}

/* Other libraries may open files before a constructor of this one would run, so every call asks. */
static bool enter(void) {
    pthread_once(&once, init);
    if (!dir_setting || inside) return false;
    inside = true;
    pthread_mutex_lock(&mutex);
    return true;
}

static void leave(void) {
    pthread_mutex_unlock(&mutex);
    inside = false;
}

/* ---- Sectors and the undo list ---- */

static off_t length(const struct file *f) {
    struct stat st;
    if (fstat(f->fd, &st) != 0) die("cannot read the length of a tracked file");
    return st.st_size;
}

static void set_length(const struct file *f, off_t len) {
    if (real_ftruncate(f->fd, len) != 0) die("cannot set the length of a tracked file");
}

/* Bytes past the end of the file read as zeros, which is what they become if the file grows. */
static void read_sector(const struct file *f, off_t sector, unsigned char *bytes) {
    ssize_t n = pread(f->fd, bytes, SECTOR, sector * SECTOR);
    if (n < 0) die("cannot read a tracked file");
    memset(bytes + n, 0, SECTOR - (size_t)n);
}

/* This may lengthen the file to the end of the sector, so the caller sets the length afterwards. */
static void write_sector(const struct file *f, off_t sector, const unsigned char *bytes) {
    if (real_pwrite(f->fd, bytes, SECTOR, sector * SECTOR) != SECTOR) die("cannot restore a sector");
}

/* Saves the sectors that hold the bytes from `start` up to `end`; must precede the operation. */
static void save(struct file *f, off_t start, off_t end, bool truncation) {
    off_t old_len = length(f);
    serial++;
    for (off_t sector = start / SECTOR; sector * SECTOR < end; sector++) {
        if (f->count == f->capacity) {
            f->capacity = f->capacity ? 2 * f->capacity : 64;
            f->pieces = realloc(f->pieces, f->capacity * sizeof *f->pieces);
            if (!f->pieces) die("no memory for the undo list");
        }
        struct piece *p = &f->pieces[f->count++];
        *p = (struct piece){.op = serial, .sector = sector, .truncation = truncation};
        p->old_len = old_len;
        read_sector(f, sector, p->bytes);
    }
}

/* Completes what save() began at `mark`, or forgets it if the operation failed.  A short write leaves
 * pieces whose sectors did not change, which is harmless. */
static void saved(struct file *f, size_t mark, bool done) {
    if (!done) f->count = mark;
    off_t new_len = length(f);
    for (size_t i = mark; i < f->count; i++) f->pieces[i].new_len = new_len;
}

static int truncate_tracked(struct file *f, int fd, off_t len) {
    size_t mark = f->count;
    off_t old_len = length(f);
    off_t start = len < 0 || len > old_len ? old_len : len;
    /* At least one piece is needed to carry the change of length. */
    save(f, start, old_len > start ? old_len : start + 1, true);
    int result = real_ftruncate(fd, len);
    saved(f, mark, result == 0);
    return result;
}

/* Whether a successful fsync leaves nothing to undo for a piece: it was not lost, or its sector was
 * written again, which carries the whole sector to the disk, or a truncation has ended it. */
static bool settled(const struct file *f, size_t i) {
    off_t sector = f->pieces[i].sector;
    for (const struct piece *p = &f->pieces[i]; p < &f->pieces[f->count]; p++)
        if (p->sector == sector && (!p->lost || (p->truncation && sector * SECTOR >= p->new_len)))
            return true;
    return false;
}

/* After a successful fsync everything is durable except sectors that an earlier fsync lost and that
 * were not written again.  The length is durable too, unless nothing at all was written since. */
static void settle(struct file *f) {
    bool fresh = false;
    for (size_t i = 0; i < f->count; i++) fresh |= !f->pieces[i].lost;
    if (!fresh) return;
    off_t len = length(f);
    size_t left = 0;
    for (size_t i = 0; i < f->count; i++) {
        struct piece *p = &f->pieces[i];
        if (settled(f, i)) continue;
        p->old_len = p->new_len = len;
        p->truncation = false;
        f->pieces[left++] = *p;
    }
    f->count = left;
}

/* ---- The cut ---- */

/* SplitMix64: small, and the same on every machine. */
static uint64_t draw(uint64_t below) {
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

/* Takes the file back to its synced contents, newest operation first, and turns the list of old
 * contents into a list of new contents.  Returns the number of operations undone. */
static size_t undo(struct file *f) {
    size_t undone = 0;
    for (size_t i = f->count; i-- > 0;) {
        struct piece *p = &f->pieces[i];
        unsigned char newer[SECTOR];
        read_sector(f, p->sector, newer);
        write_sector(f, p->sector, p->bytes);
        memcpy(p->bytes, newer, SECTOR);
        /* The length waits for the last piece, or it would cut off pieces not yet read. */
        if (i == 0 || p[-1].op != p->op) {
            set_length(f, p->old_len);
            undone++;
        }
    }
    return undone;
}

/* Applies a random part of the undone operations again, oldest first.  `density` eighths of the
 * operations survive, half of those torn.  Returns the number that survive at least in part. */
static size_t replay(struct file *f, uint64_t density) {
    off_t len = length(f);
    /* File systems order changes of length: sectors written past the end that a truncation made
     * cannot survive when the truncation itself does not. */
    off_t ceiling = INT64_MAX;
    size_t kept = 0;
    for (size_t i = 0, end; i < f->count; i = end) {
        const struct piece *first = &f->pieces[i];
        for (end = i; end < f->count && f->pieces[end].op == first->op;) end++;
        bool survives = draw(8) < density, torn = draw(2), any = false;
        if (first->truncation) {
            if (survives && first->new_len <= ceiling) {
                len = first->new_len;
                ceiling = INT64_MAX;
                any = true;
            } else if (first->new_len < first->old_len && first->new_len < ceiling) {
                ceiling = first->new_len;
            }
        } else if (survives) {
            for (const struct piece *p = first; p < &f->pieces[end]; p++) {
                off_t sector_end = (p->sector + 1) * SECTOR;
                if (sector_end > ceiling || (torn && draw(2))) continue;
                write_sector(f, p->sector, p->bytes);
                off_t reached = sector_end < p->new_len ? sector_end : p->new_len;
                if (reached > len) len = reached;
                any = true;
            }
            /* The length may reach the disk without the data, which then reads as zeros. */
            if (draw(2) && first->new_len <= ceiling && first->new_len > len) {
                len = first->new_len;
                any = true;
            }
        }
        set_length(f, len);
        kept += any;
    }
    return kept;
}

/* The present absolute path behind a descriptor, whatever the file was called when it was opened. */
static bool path_of(int fd, char path[PATH_MAX]) {
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n < 0 ? 0 : n] = '\0';
    return n > 0;
}

static _Noreturn void cut(void) {
    size_t unsynced = 0, kept = 0;
    random_state = seed ^ operations << 32;
    uint64_t density = 1 + draw(7);
    for (struct file *f = files; f; f = f->next) {
        char path[PATH_MAX];
        unsynced += undo(f);
        if (f->unlisted && (seed == 0 || draw(2))) {
            if (path_of(f->fd, path)) real_unlinkat(AT_FDCWD, path, 0);
        } else if (seed != 0) {
            kept += replay(f, density);
        }
    }
    dprintf(STDERR_FILENO, "power cut at operation %ju: %zu unsynced writes, %zu kept\n",
            (uintmax_t)operations, unsynced, kept);
    _exit(EXIT_CUT);
}

static void count_operation(void) {
    if (++operations == cut_at) cut();
}

/* ---- Which files are tracked ---- */

/* Whether the path is the directory or lies below it. */
static bool in_root(const char *path) {
    if (!root[0] && !realpath(dir_setting, root)) root[0] = '\0';
    size_t n = strlen(root);
    return n > 0 && strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool parent_is(const char *path, const char *dir) {
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && strrchr(path, '/') == path + n;
}

static bool ends_with(const char *path, const char *suffix) {
    size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

static struct file *find(const struct stat *st) {
    struct file *f = files;
    while (f && (f->dev != st->st_dev || f->ino != st->st_ino)) f = f->next;
    return f;
}

/* The tracked file behind a descriptor.  It is found by its inode, which the shim's own descriptor
 * keeps from being reused, so several descriptors share one undo list and close needs no hook. */
static struct file *find_fd(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? find(&st) : NULL;
}

static struct file *find_path(int dirfd, const char *path, bool *exists) {
    struct stat st;
    *exists = fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    return *exists ? find(&st) : NULL;
}

/* Starts to track the file behind a new descriptor, if it is one to track. */
static struct file *adopt(int fd, int flags, bool created) {
    struct stat st;
    char path[PATH_MAX], link[32];
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return NULL;
    if (!path_of(fd, path) || !in_root(path)) return NULL;
    if (ends_with(path, "-shm") || ends_with(path, ".lock") || ends_with(path, ".acks")) return NULL;
    struct file *f = find(&st);
    if (!f) {
        /* Closing any descriptor of a file drops the process's POSIX locks on it, SQLite's included,
         * so this one stays open for as long as the file has a name. */
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int own = real_openat(AT_FDCWD, link, O_RDWR | O_CLOEXEC);
        if (own < 0 && (flags & O_ACCMODE) == O_RDONLY) return NULL;
        f = malloc(sizeof *f);
        if (own < 0 || !f) die("cannot track a file");
        *f = (struct file){.next = files, .dev = st.st_dev, .ino = st.st_ino, .fd = own};
        files = f;
    }
    f->unlisted |= created;
    return f;
}

/* Forgets the files that no longer have a name, after an unlink or a rename. */
static void forget_nameless(void) {
    for (struct file **link = &files; *link;) {
        struct file *f = *link;
        struct stat st;
        if (fstat(f->fd, &st) != 0 || st.st_nlink > 0) {
            link = &f->next;
            continue;
        }
        *link = f->next;
        close(f->fd);
        free(f->pieces);
        free(f);
    }
}

/* ---- The intercepted calls ---- */

static int shim_open(int dirfd, const char *path, int flags, mode_t mode) {
    struct stat st;
    if (!enter()) return real_openat(dirfd, path, flags, mode);
    bool exists = fstatat(dirfd, path, &st, 0) == 0;
    /* Opening a FIFO or a terminal can block, which must not happen under the mutex. */
    if (exists && !S_ISREG(st.st_mode)) {
        leave();
        return real_openat(dirfd, path, flags, mode);
    }
    /* The file is emptied after the open, when it is known whether the old contents matter. */
    bool empty = (flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY;
    int fd = real_openat(dirfd, path, empty ? flags & ~O_TRUNC : flags, mode);
    if (fd >= 0) {
        struct file *f = adopt(fd, flags, (flags & O_CREAT) && !exists);
        if (empty && exists && (f ? truncate_tracked(f, fd, 0) : real_ftruncate(fd, 0)) != 0)
            die("cannot empty a file");
    }
    leave();
    return fd;
}

/* Enters the shim for an operation on a tracked file and counts it; otherwise returns NULL. */
static struct file *begin(int fd) {
    if (!enter()) return NULL;
    struct file *f = find_fd(fd);
    if (f) count_operation();
    else leave();
    return f;
}

/* Saves what a write will replace.  `offset` is negative for a write at the current position. */
static size_t before_write(struct file *f, int fd, off_t offset, size_t size) {
    size_t mark = f->count;
    /* On Linux even pwrite appends if the file was opened with O_APPEND. */
    if (fcntl(fd, F_GETFL) & O_APPEND) offset = length(f);
    else if (offset < 0) offset = lseek(fd, 0, SEEK_CUR);
    save(f, offset, offset + (off_t)size, false);
    return mark;
}

static ssize_t after_write(struct file *f, size_t mark, ssize_t written) {
    saved(f, mark, written > 0);
    leave();
    return written;
}

static size_t total(const struct iovec *iov, int n) {
    size_t size = 0;
    for (int i = 0; i < n; i++) size += iov[i].iov_len;
    return size;
}

static int shim_sync(int fd, int (*const *real_sync)(int)) {
    struct stat st;
    char dir[PATH_MAX], path[PATH_MAX];
    if (!enter()) return (*real_sync)(fd);
    struct file *f = find_fd(fd);
    bool directory = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) && path_of(fd, dir) && in_root(dir);
    if (f || directory) count_operation();
    bool fail = f && ++file_syncs == fail_at;
    if (fail) {
        dprintf(STDERR_FILENO, "fsync failure injected at fsync %ju\n", (uintmax_t)file_syncs);
        errno = EIO;
    }
    int result = fail ? -1 : (*real_sync)(fd);
    if (f && result == 0) settle(f);
    if (f && result != 0)
        for (size_t i = 0; i < f->count; i++) f->pieces[i].lost = true;
    if (directory && result == 0)
        for (f = files; f; f = f->next)
            if (path_of(f->fd, path) && parent_is(path, dir)) f->unlisted = false;
    leave();
    return result;
}

static int shim_unlink(int dirfd, const char *path, int flags) {
    bool exists;
    if (!enter()) return real_unlinkat(dirfd, path, flags);
    if (find_path(dirfd, path, &exists)) count_operation();
    int result = real_unlinkat(dirfd, path, flags);
    if (result == 0) forget_nameless();
    leave();
    return result;
}

static int shim_rename(int from_dir, const char *from, int to_dir, const char *to) {
    bool exists;
    if (!enter()) return real_renameat(from_dir, from, to_dir, to);
    struct file *f = find_path(from_dir, from, &exists);
    if (f) count_operation();
    struct file *target = find_path(to_dir, to, &exists);
    int result = real_renameat(from_dir, from, to_dir, to);
    if (result == 0) {
        /* The name of a replaced file stays as durable as it was; it does not vanish. */
        if (f && exists) f->unlisted = target && target->unlisted;
        forget_nameless();
    }
    leave();
    return result;
}

/* The mode is there only if the flags ask for one. */
#define TAKE_MODE(flags, mode)                                  \
    mode_t mode = 0;                                            \
    if (__OPEN_NEEDS_MODE(flags)) {                             \
        va_list args;                                           \
        va_start(args, flags);                                  \
        mode = va_arg(args, mode_t);                            \
        va_end(args);                                           \
    }

int open(const char *path, int flags, ...) {
    TAKE_MODE(flags, mode)
    return shim_open(AT_FDCWD, path, flags, mode);
}

int openat(int dirfd, const char *path, int flags, ...) {
    TAKE_MODE(flags, mode)
    return shim_open(dirfd, path, flags, mode);
}

int creat(const char *path, mode_t mode) {
    return shim_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

/* Fortified callers use these when they pass no mode. */
int __open_2(const char *path, int flags) { return shim_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) { return shim_open(dirfd, path, flags, 0); }

/* Performs `call` exactly once, with what it will replace saved first if the file is tracked. */
#define SHIM_WRITE(fd, offset, size, call)               \
    struct file *f = begin(fd);                          \
    if (!f) return call;                                 \
    size_t mark = before_write(f, fd, offset, size);     \
    return after_write(f, mark, call);

ssize_t write(int fd, const void *data, size_t size) {
    SHIM_WRITE(fd, -1, size, real_write(fd, data, size))
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    SHIM_WRITE(fd, offset, size, real_pwrite(fd, data, size, offset))
}

ssize_t writev(int fd, const struct iovec *iov, int n) {
    SHIM_WRITE(fd, -1, total(iov, n), real_writev(fd, iov, n))
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t offset) {
    SHIM_WRITE(fd, offset, total(iov, n), real_pwritev(fd, iov, n, offset))
}

ssize_t pwritev2(int fd, const struct iovec *iov, int n, off_t offset, int flags) {
    SHIM_WRITE(fd, offset, total(iov, n), real_pwritev2(fd, iov, n, offset, flags))
}

int ftruncate(int fd, off_t len) {
    struct file *f = begin(fd);
    if (!f) return real_ftruncate(fd, len);
    int result = truncate_tracked(f, fd, len);
    leave();
    return result;
}

int fsync(int fd) { return shim_sync(fd, &real_fsync); }
int fdatasync(int fd) { return shim_sync(fd, &real_fdatasync); }

int unlink(const char *path) { return shim_unlink(AT_FDCWD, path, 0); }
int unlinkat(int dirfd, const char *path, int flags) { return shim_unlink(dirfd, path, flags); }

int rename(const char *from, const char *to) { return shim_rename(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return shim_rename(from_dir, from, to_dir, to);
}

/* With a 64-bit off_t these are the same functions under other names. */
#define ALIAS(name, of) extern __typeof__(of) name __attribute__((alias(#of)))
ALIAS(open64, open);
ALIAS(openat64, openat);
ALIAS(creat64, creat);
ALIAS(__open64_2, __open_2);
ALIAS(__openat64_2, __openat_2);
ALIAS(pwrite64, pwrite);
ALIAS(pwritev64, pwritev);
ALIAS(pwritev64v2, pwritev2);
ALIAS(ftruncate64, ftruncate);
