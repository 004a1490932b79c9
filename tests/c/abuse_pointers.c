/*
 * Every function of tollgate.h with every pointer NULL, misaligned, or leading to an object that
 * was never made. Each call has to answer with the right status and leave its outputs as they were,
 * and neither crash nor touch a byte that is not its own: run it under sanitizers too.
 */
#include "abuse.h"

static tollgate_hold no_hold;
static tollgate_limit zero_limit;
static tollgate_table zero_table;

static void null_pointers_of_limits_and_buckets(void) {
    tollgate_limit_config good = good_config();
    REFUSES(NULL, tollgate_limit_init(NULL, &out.limit, NULL, 0));
    REFUSES(NULL, tollgate_limit_init(&good, NULL, NULL, 0));
    REFUSES(NULL, tollgate_limit_parse(NULL, 5, 0, &out.limit, NULL, 0));
    REFUSES(NULL, tollgate_limit_parse("1/s", 3, 0, NULL, NULL, 0));
    REFUSES(NULL, tollgate_limit_describe(NULL, &good));
    REFUSES(NULL, tollgate_limit_describe(&limits[0], NULL));
    REFUSES(NULL, tollgate_limit_format(NULL, out.text, sizeof out.text, &out.len));
    REFUSES(NULL, tollgate_limit_format(&limits[0], NULL, sizeof out.text, &out.len));
    REFUSES(NULL, tollgate_limit_format(&limits[0], NULL, 0, &out.len));
    REFUSES(NULL, tollgate_algorithm_parse(NULL, 3, &out.algorithm));
    REFUSES(NULL, tollgate_algorithm_parse("concurrency", 11, NULL));

    REFUSES(NULL, tollgate_bucket_layout(NULL, &out.size, &out.align));
    REFUSES(NULL, tollgate_bucket_layout(&limits[0], NULL, &out.align));
    REFUSES(NULL, tollgate_bucket_layout(&limits[0], &out.size, NULL));
    REFUSES(NULL, tollgate_bucket_init(NULL, bucket_size, &limits[0], &out.bucket));
    REFUSES(NULL, tollgate_bucket_init(bucket_memory, bucket_size, NULL, &out.bucket));
    REFUSES(NULL, tollgate_bucket_init(bucket_memory, bucket_size, &limits[0], NULL));
    REFUSES(NULL, tollgate_bucket_attach(NULL, bucket_size, &out.bucket));
    REFUSES(NULL, tollgate_bucket_attach(bucket_memory, bucket_size, NULL));
    REFUSES(NULL, tollgate_bucket_check(NULL, 1, 0, out.decisions));
    REFUSES(NULL, tollgate_bucket_check(bucket, 1, 0, NULL));
    REFUSES(NULL, tollgate_bucket_peek(NULL, 1, 0, out.decisions));
    REFUSES(NULL, tollgate_bucket_peek(bucket, 1, 0, NULL));
    REFUSES(NULL, tollgate_bucket_refund(NULL, 1, 0));
    REFUSES(NULL, tollgate_bucket_set_limit(NULL, &limits[0], 0));
    REFUSES(NULL, tollgate_bucket_set_limit(bucket, NULL, 0));
}

static void null_pointers_of_tables(void) {
    tollgate_decision *answer = out.decisions;
    tollgate_hold *held = out.holds;
    const tollgate_limit *bucketed = &limits[0], *flight = &limits[TOLLGATE_CONCURRENCY];
    REFUSES(NULL, tollgate_table_layout(NULL, &out.size, &out.align));
    REFUSES(NULL, tollgate_table_layout(&config, NULL, &out.align));
    REFUSES(NULL, tollgate_table_layout(&config, &out.size, NULL));
    REFUSES(NULL, tollgate_table_capacity(4096, 0, 0, NULL));
    REFUSES(NULL, tollgate_table_init(NULL, memory_size, &config, &out.table));
    REFUSES(NULL, tollgate_table_init(memory, memory_size, NULL, &out.table));
    REFUSES(NULL, tollgate_table_init(memory, memory_size, &config, NULL));
    REFUSES(NULL, tollgate_table_attach(NULL, memory_size, NULL, &out.table));
    REFUSES(NULL, tollgate_table_attach(memory, memory_size, NULL, NULL));
    REFUSES(NULL, tollgate_table_accepts(NULL, bucketed));
    REFUSES(NULL, tollgate_table_accepts(&table, NULL));
    REFUSES(NULL, tollgate_table_check(NULL, "k", 1, bucketed, 1, 0, answer));
    REFUSES(NULL, tollgate_table_check(&table, NULL, 1, bucketed, 1, 0, answer));
    REFUSES(NULL, tollgate_table_check(&table, "k", 1, NULL, 1, 0, answer));
    REFUSES(NULL, tollgate_table_check(&table, "k", 1, bucketed, 1, 0, NULL));
    REFUSES(NULL, tollgate_table_peek(NULL, "k", 1, bucketed, 1, 0, answer));
    REFUSES(NULL, tollgate_table_peek(&table, NULL, 1, bucketed, 1, 0, answer));
    REFUSES(NULL, tollgate_table_peek(&table, "k", 1, NULL, 1, 0, answer));
    REFUSES(NULL, tollgate_table_peek(&table, "k", 1, bucketed, 1, 0, NULL));
    REFUSES(NULL, tollgate_table_refund(NULL, "k", 1, bucketed, 1, 0));
    REFUSES(NULL, tollgate_table_refund(&table, NULL, 1, bucketed, 1, 0));
    REFUSES(NULL, tollgate_table_refund(&table, "k", 1, NULL, 1, 0));
    REFUSES(NULL, tollgate_table_acquire(NULL, "k", 1, flight, 1, 0, answer, held));
    REFUSES(NULL, tollgate_table_acquire(&table, NULL, 1, flight, 1, 0, answer, held));
    REFUSES(NULL, tollgate_table_acquire(&table, "k", 1, NULL, 1, 0, answer, held));
    REFUSES(NULL, tollgate_table_acquire(&table, "k", 1, flight, 1, 0, NULL, held));
    REFUSES(NULL, tollgate_table_acquire(&table, "k", 1, flight, 1, 0, answer, NULL));
    REFUSES(NULL, tollgate_table_release(NULL, &no_hold));
    REFUSES(NULL, tollgate_table_release(&table, NULL));
    REFUSES(NULL, tollgate_table_stats_read(NULL, &out.stats));
    REFUSES(NULL, tollgate_table_stats_read(&table, NULL));
    REFUSES(NULL, tollgate_table_live(NULL, 0, &out.live));
    REFUSES(NULL, tollgate_table_live(&table, 0, NULL));
}

static void null_pointers_of_requests(void) {
    tollgate_decision *answers = out.decisions;
    tollgate_hold *held = out.holds;
    REFUSES(NULL, tollgate_table_check_all(NULL, requests, 2, 0, answers, held, &out.tightest));
    REFUSES(NULL, tollgate_table_check_all(&table, NULL, 2, 0, answers, held, &out.tightest));
    REFUSES(NULL, tollgate_table_check_all(&table, requests, 2, 0, NULL, held, &out.tightest));
    REFUSES(NULL, tollgate_table_check_all(&table, requests, 2, 0, answers, held, NULL));
    REFUSES(NULL, tollgate_table_refund_all(NULL, requests, 2, 0));
    REFUSES(NULL, tollgate_table_refund_all(&table, NULL, 2, 0));
    REFUSES(NULL, tollgate_table_check_batch(NULL, requests, 2, 0, answers));
    REFUSES(NULL, tollgate_table_check_batch(&table, NULL, 2, 0, answers));
    REFUSES(NULL, tollgate_table_check_batch(&table, requests, 2, 0, NULL));
    tollgate_request bad[2] = {requests[0], requests[1]};
    bad[1].key = NULL;
    REFUSES(NULL, tollgate_table_check_all(&table, bad, 2, 0, answers, held, &out.tightest));
    REFUSES(NULL, tollgate_table_refund_all(&table, bad, 2, 0));
    REFUSES(NULL, tollgate_table_check_batch(&table, bad, 2, 0, answers));
    bad[1] = requests[1];
    bad[1].limit = NULL;
    REFUSES(NULL, tollgate_table_check_all(&table, bad, 2, 0, answers, held, &out.tightest));
    REFUSES(NULL, tollgate_table_refund_all(&table, bad, 2, 0));
    REFUSES(NULL, tollgate_table_check_batch(&table, bad, 2, 0, answers));
    bad[1].limit = &limits[TOLLGATE_CONCURRENCY]; /* and so holds are not optional */
    REFUSES(NULL, tollgate_table_check_all(&table, bad, 2, 0, answers, NULL, &out.tightest));
    /* None of these took anything from the request that was in order. */
    tollgate_decision whole;
    ACCEPTS(tollgate_table_peek(&table, "key", 3, &limits[0], 0, 0, &whole));
    HOLDS(whole.remaining == 10);
}

static void null_pointers_of_answers(void) {
    const uint32_t family = TOLLGATE_FIELDS_RATELIMIT;
    const tollgate_limit *limit = &limits[0];
    char *text = out.text;
    const size_t size = sizeof out.text;
    tollgate_http_field *fields = out.fields;
    size_t *count = &out.count, *len = &out.len;
    REFUSES(NULL,
            tollgate_http_fields(family, NULL, 1, limit, &decision, text, size, fields, count));
    REFUSES(NULL, tollgate_http_fields(family, "p", 1, NULL, &decision, text, size, fields, count));
    REFUSES(NULL, tollgate_http_fields(family, "p", 1, limit, NULL, text, size, fields, count));
    REFUSES(NULL,
            tollgate_http_fields(family, "p", 1, limit, &decision, NULL, size, fields, count));
    REFUSES(NULL, tollgate_http_fields(family, "p", 1, limit, &decision, NULL, 0, fields, count));
    REFUSES(NULL, tollgate_http_fields(family, "p", 1, limit, &decision, text, size, NULL, count));
    REFUSES(NULL, tollgate_http_fields(family, "p", 1, limit, &decision, text, size, fields, NULL));
    REFUSES(NULL, tollgate_http_problem(429, NULL, 1, &decision, text, size, len));
    REFUSES(NULL, tollgate_http_problem(429, "p", 1, NULL, text, size, len));
    REFUSES(NULL, tollgate_http_problem(429, "p", 1, &decision, NULL, size, len));
    REFUSES(NULL, tollgate_http_problem(429, "p", 1, &decision, NULL, 0, len));
    REFUSES(NULL, tollgate_http_problem(429, "p", 1, &decision, text, size, NULL));
    REFUSES(NULL, tollgate_counters_record(NULL, &decision, 0));
    REFUSES(NULL, tollgate_counters_record(&counters, NULL, 0));
    REFUSES(NULL, tollgate_counters_error(NULL));
    REFUSES(NULL, tollgate_counters_read(NULL, &out.snapshot));
    REFUSES(NULL, tollgate_counters_read(&counters, NULL));
}

static void limits_and_buckets_that_were_never_made(void) {
    tollgate_limit_config good = good_config();
    tollgate_bucket *zeros = (tollgate_bucket *)allocate(bucket_size);
    memset((void *)zeros, 0, bucket_size);
    REFUSES(ARGUMENT, tollgate_limit_describe(&zero_limit, &good));
    REFUSES(ARGUMENT, tollgate_limit_format(&zero_limit, out.text, sizeof out.text, &out.len));
    REFUSES(ARGUMENT, tollgate_bucket_layout(&zero_limit, &out.size, &out.align));
    REFUSES(ARGUMENT, tollgate_bucket_init(bucket_memory, bucket_size, &zero_limit, &out.bucket));
    REFUSES(ARGUMENT, tollgate_bucket_check(zeros, 1, 0, out.decisions));
    REFUSES(ARGUMENT, tollgate_bucket_peek(zeros, 1, 0, out.decisions));
    REFUSES(ARGUMENT, tollgate_bucket_refund(zeros, 1, 0));
    REFUSES(ARGUMENT, tollgate_bucket_set_limit(zeros, &limits[0], 0));
    REFUSES(ARGUMENT, tollgate_bucket_set_limit(bucket, &zero_limit, 0));
    REFUSES(ARGUMENT, tollgate_table_accepts(&table, &zero_limit));
    REFUSES(ARGUMENT, tollgate_table_check(&table, "k", 1, &zero_limit, 1, 0, out.decisions));
    REFUSES(ARGUMENT, tollgate_table_peek(&table, "k", 1, &zero_limit, 1, 0, out.decisions));
    REFUSES(ARGUMENT, tollgate_table_refund(&table, "k", 1, &zero_limit, 1, 0));
    tollgate_request bad[2] = {requests[0], requests[1]};
    bad[1].limit = &zero_limit;
    REFUSES(ARGUMENT,
            tollgate_table_check_all(&table, bad, 2, 0, out.decisions, out.holds, &out.tightest));
    REFUSES(ARGUMENT, tollgate_table_refund_all(&table, bad, 2, 0));
    REFUSES(ARGUMENT, tollgate_table_check_batch(&table, bad, 2, 0, out.decisions));
    REFUSES(ARGUMENT, tollgate_http_fields(TOLLGATE_FIELDS_OFF, "p", 1, &zero_limit, &decision,
                                           out.text, sizeof out.text, out.fields, &out.count));
    free(zeros);
}

static void tables_that_were_never_made(void) {
    const void *limit = &limits[0]; /* another object, as large as a table's view */
    const tollgate_table *views[] = {&zero_table, (const tollgate_table *)limit};
    const tollgate_limit *bucketed = &limits[0], *flight = &limits[TOLLGATE_CONCURRENCY];
    for (size_t i = 0; i < COUNT(views); i++) {
        const tollgate_table *view = views[i];
        REFUSES(ARGUMENT, tollgate_table_accepts(view, bucketed));
        REFUSES(ARGUMENT, tollgate_table_check(view, "k", 1, bucketed, 1, 0, out.decisions));
        REFUSES(ARGUMENT, tollgate_table_peek(view, "k", 1, bucketed, 1, 0, out.decisions));
        REFUSES(ARGUMENT, tollgate_table_refund(view, "k", 1, bucketed, 1, 0));
        REFUSES(ARGUMENT,
                tollgate_table_acquire(view, "k", 1, flight, 1, 0, out.decisions, out.holds));
        REFUSES(ARGUMENT, tollgate_table_release(view, &no_hold));
        REFUSES(ARGUMENT, tollgate_table_check_all(view, requests, 2, 0, out.decisions, out.holds,
                                                   &out.tightest));
        REFUSES(ARGUMENT, tollgate_table_refund_all(view, requests, 2, 0));
        REFUSES(ARGUMENT, tollgate_table_check_batch(view, requests, 2, 0, out.decisions));
        REFUSES(ARGUMENT, tollgate_table_stats_read(view, &out.stats));
        REFUSES(ARGUMENT, tollgate_table_live(view, 0, &out.live));
    }
}

/* The memory of buckets and tables is aligned to 64 bytes. */
static void misaligned_memory(void) {
    const size_t size = memory_size + 64;
    char *odd = (char *)allocate(size);
    for (size_t by = 1; by < 64; by++) {
        REFUSES(ALIGN, tollgate_bucket_init(odd + by, bucket_size, &limits[0], &out.bucket));
        REFUSES(ALIGN, tollgate_bucket_attach(odd + by, bucket_size, &out.bucket));
        REFUSES(ALIGN, tollgate_table_init(odd + by, memory_size, &config, &out.table));
        REFUSES(ALIGN, tollgate_table_attach(odd + by, memory_size, NULL, &out.table));
        const tollgate_bucket *at = (const tollgate_bucket *)(void *)(odd + by);
        REFUSES(ALIGN, tollgate_bucket_check(at, 1, 0, out.decisions));
        REFUSES(ALIGN, tollgate_bucket_peek(at, 1, 0, out.decisions));
        REFUSES(ALIGN, tollgate_bucket_refund(at, 1, 0));
        REFUSES(ALIGN, tollgate_bucket_set_limit((tollgate_bucket *)at, &limits[0], 0));
    }
    HOLDS(is_untouched(odd, size));
    free(odd);
}

/* All plain types are aligned to 8 bytes, or 4. */
static void misaligned_inputs(void *at) {
    const tollgate_limit *limit = (const tollgate_limit *)at;
    const tollgate_table *view = (const tollgate_table *)at;
    const tollgate_request *asked = (const tollgate_request *)at;
    const tollgate_decision *told = (const tollgate_decision *)at;
    const tollgate_table_config *wanted = (const tollgate_table_config *)at;
    const tollgate_counters *counted = (const tollgate_counters *)at;
    tollgate_decision *answer = out.decisions;
    REFUSES(ALIGN, tollgate_limit_init((tollgate_limit_config *)at, &out.limit, NULL, 0));
    REFUSES(ALIGN, tollgate_limit_describe(limit, &out.config));
    REFUSES(ALIGN, tollgate_limit_format(limit, out.text, sizeof out.text, &out.len));
    REFUSES(ALIGN, tollgate_bucket_layout(limit, &out.size, &out.align));
    REFUSES(ALIGN, tollgate_bucket_init(bucket_memory, bucket_size, limit, &out.bucket));
    REFUSES(ALIGN, tollgate_bucket_set_limit(bucket, limit, 0));
    REFUSES(ALIGN, tollgate_table_layout(wanted, &out.size, &out.align));
    REFUSES(ALIGN, tollgate_table_init(memory, memory_size, wanted, &out.table));
    REFUSES(ALIGN, tollgate_table_attach(memory, memory_size, wanted, &out.table));
    REFUSES(ALIGN, tollgate_table_accepts(view, &limits[0]));
    REFUSES(ALIGN, tollgate_table_accepts(&table, limit));
    REFUSES(ALIGN, tollgate_table_check(view, "k", 1, &limits[0], 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_check(&table, "k", 1, limit, 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_peek(&table, "k", 1, limit, 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_refund(&table, "k", 1, limit, 1, 0));
    REFUSES(ALIGN, tollgate_table_acquire(&table, "k", 1, limit, 1, 0, answer, out.holds));
    REFUSES(ALIGN, tollgate_table_release(&table, (const tollgate_hold *)at));
    REFUSES(ALIGN, tollgate_table_check_all(&table, asked, 1, 0, answer, out.holds, &out.tightest));
    REFUSES(ALIGN, tollgate_table_refund_all(&table, asked, 1, 0));
    REFUSES(ALIGN, tollgate_table_check_batch(&table, asked, 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_stats_read(view, &out.stats));
    REFUSES(ALIGN, tollgate_table_live(view, 0, &out.live));
    REFUSES(ALIGN, tollgate_http_fields(0, "p", 1, limit, &decision, out.text, sizeof out.text,
                                        out.fields, &out.count));
    REFUSES(ALIGN, tollgate_http_fields(0, "p", 1, &limits[0], told, out.text, sizeof out.text,
                                        out.fields, &out.count));
    REFUSES(ALIGN, tollgate_http_problem(429, "p", 1, told, out.text, sizeof out.text, &out.len));
    REFUSES(ALIGN, tollgate_counters_record(counted, &decision, 0));
    REFUSES(ALIGN, tollgate_counters_record(&counters, told, 0));
    REFUSES(ALIGN, tollgate_counters_error(counted));
    REFUSES(ALIGN, tollgate_counters_read(counted, &out.snapshot));
}

static void misaligned_outputs(void *at) {
    tollgate_decision *answer = (tollgate_decision *)at;
    tollgate_hold *held = (tollgate_hold *)at;
    tollgate_table *view = (tollgate_table *)at;
    size_t *number = (size_t *)at;
    const tollgate_limit *flight = &limits[TOLLGATE_CONCURRENCY];
    tollgate_limit_config good = good_config();
    REFUSES(ALIGN, tollgate_limit_init(&good, (tollgate_limit *)at, NULL, 0));
    REFUSES(ALIGN, tollgate_limit_parse("1/s", 3, 0, (tollgate_limit *)at, NULL, 0));
    REFUSES(ALIGN, tollgate_limit_describe(&limits[0], (tollgate_limit_config *)at));
    REFUSES(ALIGN, tollgate_limit_format(&limits[0], out.text, sizeof out.text, number));
    REFUSES(ALIGN, tollgate_bucket_layout(&limits[0], number, &out.align));
    REFUSES(ALIGN, tollgate_bucket_layout(&limits[0], &out.size, number));
    REFUSES(ALIGN, tollgate_bucket_attach(bucket_memory, bucket_size, (tollgate_bucket **)at));
    REFUSES(ALIGN, tollgate_bucket_check(bucket, 1, 0, answer));
    REFUSES(ALIGN, tollgate_bucket_peek(bucket, 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_layout(&config, number, &out.align));
    REFUSES(ALIGN, tollgate_table_layout(&config, &out.size, number));
    REFUSES(ALIGN, tollgate_table_capacity(4096, 0, 0, (uint64_t *)at));
    REFUSES(ALIGN, tollgate_table_attach(memory, memory_size, NULL, view));
    REFUSES(ALIGN, tollgate_table_check(&table, "k", 1, &limits[0], 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_peek(&table, "k", 1, &limits[0], 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_acquire(&table, "k", 1, flight, 1, 0, answer, out.holds));
    REFUSES(ALIGN, tollgate_table_acquire(&table, "k", 1, flight, 1, 0, out.decisions, held));
    REFUSES(ALIGN,
            tollgate_table_check_all(&table, requests, 1, 0, answer, out.holds, &out.tightest));
    REFUSES(ALIGN,
            tollgate_table_check_all(&table, requests, 1, 0, out.decisions, held, &out.tightest));
    REFUSES(ALIGN,
            tollgate_table_check_all(&table, requests, 1, 0, out.decisions, out.holds, number));
    REFUSES(ALIGN, tollgate_table_check_batch(&table, requests, 1, 0, answer));
    REFUSES(ALIGN, tollgate_table_stats_read(&table, (tollgate_table_stats *)at));
    REFUSES(ALIGN, tollgate_table_live(&table, 0, (uint64_t *)at));
    REFUSES(ALIGN, tollgate_http_fields(0, "p", 1, &limits[0], &decision, out.text, sizeof out.text,
                                        (tollgate_http_field *)at, &out.count));
    REFUSES(ALIGN, tollgate_http_fields(0, "p", 1, &limits[0], &decision, out.text, sizeof out.text,
                                        out.fields, number));
    REFUSES(ALIGN,
            tollgate_http_problem(429, "p", 1, &decision, out.text, sizeof out.text, number));
    REFUSES(ALIGN, tollgate_counters_read(&counters, (tollgate_counters_snapshot *)at));
}

static void misaligned_objects(void) {
    const size_t size = 4096 + 64;
    char *odd = (char *)allocate(size);
    for (size_t by = 1; by < 64; by++) {
        if (by % 8 != 0) {
            misaligned_inputs(odd + by);
            misaligned_outputs(odd + by);
        }
        if (by % 4 != 0) {
            uint32_t *number = (uint32_t *)(void *)(odd + by);
            REFUSES(ALIGN, tollgate_algorithm_parse("concurrency", 11, number));
        }
    }
    HOLDS(is_untouched(odd, size));
    free(odd);
}

/* An init that is refused for its output has not begun. */
static void a_refused_init_leaves_the_memory(void) {
    char odd[64];
    void *room = allocate(memory_size);
    void *at = (char *)((uintptr_t)odd | 7);
    REFUSES(ALIGN, tollgate_table_init(room, memory_size, &config, (tollgate_table *)at));
    REFUSES(NULL, tollgate_table_init(room, memory_size, &config, NULL));
    REFUSES(ALIGN, tollgate_bucket_init(room, memory_size, &limits[0], (tollgate_bucket **)at));
    REFUSES(NULL, tollgate_bucket_init(room, memory_size, &limits[0], NULL));
    HOLDS(is_untouched(room, memory_size));
    free(room);
}

int main(void) {
    prepare();
    null_pointers_of_limits_and_buckets();
    null_pointers_of_tables();
    null_pointers_of_requests();
    null_pointers_of_answers();
    limits_and_buckets_that_were_never_made();
    tables_that_were_never_made();
    misaligned_memory();
    misaligned_objects();
    a_refused_init_leaves_the_memory();
    return finish();
}
