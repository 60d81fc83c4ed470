/* Makes file calls of the process that preloads it fail, for as long as a file says so.
 *
 * TIDELOG_FAULTS names the control file. While it exists, each of its lines
 *
 *     <errno> <calls> <path prefix>
 *
 * makes the calls fail that are on a file whose path begins so. <errno> is a number, <calls>
 * a list with commas: write (also pwrite, writev, fallocate), fsync (also fdatasync),
 * read (also pread, sendfile), truncate. The file is looked at on every call, so that it is
 * to be put there whole, by a rename. A failed call does nothing at all.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define CONTROL_SIZE_MAX 8192

/* Return the errno that a call on the descriptor is to fail with, 0 for none. */
static int fault(int fd, const char *call) {
    const char *control = getenv("TIDELOG_FAULTS");
    if (control == NULL || fd < 0) return 0;
    int kept = errno, found = 0;
    int file = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) {
        errno = kept;
        return 0;
    }
    char rules[CONTROL_SIZE_MAX + 1], link[64], path[PATH_MAX + 1];
    ssize_t size = syscall(SYS_read, file, rules, CONTROL_SIZE_MAX);
    syscall(SYS_close, file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = size < 0 ? -1 : readlink(link, path, PATH_MAX);
    if (length > 0) {
        rules[size] = path[length] = 0;
        char *state = NULL;
        for (char *line = strtok_r(rules, "\n", &state); line != NULL && found == 0;
             line = strtok_r(NULL, "\n", &state)) {
            int number, prefix_at = 0;
            char calls[128];
            if (sscanf(line, "%d %127s %n", &number, calls, &prefix_at) < 2 || !prefix_at) continue;
            if (strncmp(path, line + prefix_at, strlen(line + prefix_at)) != 0) continue;
            char *each = NULL;
            for (char *one = strtok_r(calls, ",", &each); one; one = strtok_r(NULL, ",", &each))
                if (strcmp(one, call) == 0) found = number;
        }
    }
    errno = kept;
    return found;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define FAIL(fd, call) \
    do { \
        int number = fault(fd, call); \
        if (number) { \
            errno = number; \
            return -1; \
        } \
    } while (0)

#define WRAP(result, name, call, fd, parameters, arguments) \
    result name parameters { \
        REAL(name); \
        FAIL(fd, call); \
        return real arguments; \
    }

WRAP(ssize_t, write, "write", fd, (int fd, const void *b, size_t n), (fd, b, n))
WRAP(ssize_t, pwrite, "write", fd, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
WRAP(ssize_t, pwrite64, "write", fd, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o))
WRAP(ssize_t, writev, "write", fd, (int fd, const struct iovec *v, int n), (fd, v, n))
WRAP(int, fsync, "fsync", fd, (int fd), (fd))
WRAP(int, fdatasync, "fsync", fd, (int fd), (fd))
WRAP(ssize_t, read, "read", fd, (int fd, void *b, size_t n), (fd, b, n))
WRAP(ssize_t, pread, "read", fd, (int fd, void *b, size_t n, off_t o), (fd, b, n, o))
WRAP(ssize_t, pread64, "read", fd, (int fd, void *b, size_t n, off64_t o), (fd, b, n, o))
WRAP(ssize_t, sendfile, "read", in, (int out, int in, off_t *o, size_t n), (out, in, o, n))
WRAP(ssize_t, sendfile64, "read", in, (int out, int in, off64_t *o, size_t n), (out, in, o, n))
WRAP(int, ftruncate, "truncate", fd, (int fd, off_t n), (fd, n))
WRAP(int, ftruncate64, "truncate", fd, (int fd, off64_t n), (fd, n))

/* Returns the error instead of setting it. */
int posix_fallocate(int fd, off_t offset, off_t size) {
    REAL(posix_fallocate);
    int number = fault(fd, "write");
    return number ? number : real(fd, offset, size);
}
