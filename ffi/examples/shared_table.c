/*
 * One table that several processes share: whoever asks, exactly `burst` requests are admitted.
 *
 * The table lies in an anonymous shared mapping that forked processes inherit; shm_open or a file
 * would do for processes that know one another less. Its memory holds no pointer, so each process
 * may map it where it likes. Counters in shared memory tell the parent what became of all requests.
 */
#define _DEFAULT_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <tollgate.h>

enum { PROCESSES = 4, REQUESTS = 1000, BURST = 100 };

static void require(tollgate_status status, const char *what) {
    if (status != TOLLGATE_OK) {
        fprintf(stderr, "%s: %s\n", what, tollgate_status_str(status));
        exit(1);
    }
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void *shared_memory(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fail("mmap");
    }
    return memory;
}

/* What each process does: find the table, and ask for the same key again and again. */
static void ask(void *memory, size_t size, tollgate_counters *counters) {
    const char key[] = "customer-7";
    const char text[] = "1/h burst 100";
    tollgate_table table;
    tollgate_limit limit;
    require(tollgate_table_attach(memory, size, NULL, &table), "attach");
    require(tollgate_limit_parse(text, strlen(text), TOLLGATE_TOKEN_BUCKET, &limit, NULL, 0), text);
    for (int i = 0; i < REQUESTS; i++) {
        tollgate_decision decision;
        require(tollgate_table_check(&table, key, strlen(key), &limit, 1, now_ns(), &decision),
                "check");
        require(tollgate_counters_record(counters, &decision, 0), "record");
    }
}

int main(void) {
    tollgate_table_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.capacity = 1000;
    if (getentropy(config.seed, sizeof config.seed) != 0) {
        fail("getentropy");
    }

    size_t size, align; /* a mapping is aligned to a page, which is more than enough */
    require(tollgate_table_layout(&config, &size, &align), "layout");
    void *memory = shared_memory(size);
    tollgate_table table;
    require(tollgate_table_init(memory, size, &config, &table), "init");
    tollgate_counters *counters = (tollgate_counters *)shared_memory(sizeof *counters);

    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        if (child == -1) {
            fail("fork");
        }
        if (child == 0) {
            ask(memory, size, counters);
            _exit(0);
        }
    }
    int failed = 0;
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        failed |= wait(&status) == -1 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }

    tollgate_counters_snapshot seen;
    require(tollgate_counters_read(counters, &seen), "counters");
    printf("%d processes asked %d times each: %" PRIu64 " admitted, %" PRIu64 " denied\n",
           PROCESSES, REQUESTS, seen.allowed, seen.rejected);
    munmap(counters, sizeof *counters);
    munmap(memory, size);
    return failed || seen.allowed != BURST || seen.rejected != PROCESSES * REQUESTS - BURST;
}
