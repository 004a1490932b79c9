/* Preloaded into a server: its clock of the day is ahead, or behind, by the seconds that the first
 * eight bytes of the file CLOCK_STEP_FILE say at the time. The other clocks are left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("CLOCK_STEP_FILE");
    int fd = path == NULL ? -1 : open(path, O_RDONLY);
    if (fd >= 0) {
        void *shared = mmap(NULL, sizeof(*step), PROT_READ, MAP_SHARED, fd, 0);
        step = shared == MAP_FAILED ? NULL : shared;
        close(fd);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && step != NULL) {
        now->tv_sec += *step;
    }
    return result;
}
