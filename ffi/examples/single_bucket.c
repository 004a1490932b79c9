/* One bucket: ten requests a minute, five at once. */
#define _POSIX_C_SOURCE 200112L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tollgate.h>

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(void) {
    const char *text = "10/m burst 5";
    char why[128];
    void *memory;
    size_t size, align;
    tollgate_limit limit;
    tollgate_bucket *bucket;
    tollgate_decision answer;
    if (tollgate_limit_parse(text, strlen(text), TOLLGATE_TOKEN_BUCKET, &limit, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (tollgate_bucket_layout(&limit, &size, &align) || posix_memalign(&memory, align, size) ||
        tollgate_bucket_init(memory, size, &limit, &bucket)) {
        return 1;
    }
    for (int i = 1; i <= 6 && !tollgate_bucket_check(bucket, 1, now_ns(), &answer); i++) {
        printf("request %d: %s, %d left, retry after %.1f s\n", i,
               answer.allowed ? "allowed" : "denied", (int)answer.remaining,
               (double)answer.retry_after_ns / 1e9);
    }
    free(memory);
    return 0;
}
