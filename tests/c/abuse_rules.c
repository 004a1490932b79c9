/*
 * The functions of the rules file with every pointer NULL, misaligned, or leading to what was never
 * made; documents that are broken in every way; and attributes that no client should send.
 */
#include "abuse.h"

static const char DOCUMENT[] =
    "{ \"identity\": { \"api_key\": { \"header\": \"x-api-key\", \"required\": true } },"
    "  \"policies\": [ { \"name\": \"p\", \"match\": { \"path\": \"/api/*\" }, \"key\": "
    "[\"api_key\"],"
    "                    \"limits\": [ { \"rate\": \"2/m\" } ], \"store\": \"redis\", \"shards\": "
    "2 } "
    "] }";

static const uint64_t seed[2] = {1, 2};
static tollgate_rules *rules;

static tollgate_bytes bytes(const char *text) {
    tollgate_bytes made;
    made.data = text;
    made.len = text ? strlen(text) : 0;
    return made;
}

static tollgate_attributes good_attributes(const tollgate_bytes *headers) {
    tollgate_attributes made;
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.method = bytes("GET");
    made.path = bytes("/api/x");
    made.peer = bytes("192.0.2.1");
    made.headers = headers;
    made.header_count = 1;
    return made;
}

static void pointers_are_checked(void) {
    tollgate_bytes key = bytes("k");
    tollgate_attributes good = good_attributes(&key);
    size_t len = strlen(DOCUMENT);
    REFUSES(NULL, tollgate_rules_parse(NULL, len, seed, 0, &out.rules, NULL, 0));
    REFUSES(NULL, tollgate_rules_parse(DOCUMENT, len, NULL, 0, &out.rules, NULL, 0));
    REFUSES(NULL, tollgate_rules_parse(DOCUMENT, len, seed, 0, NULL, NULL, 0));
    REFUSES(NULL, tollgate_rules_header_count(NULL, &out.count));
    REFUSES(NULL, tollgate_rules_header_count(rules, NULL));
    REFUSES(NULL, tollgate_rules_header(NULL, 0, &out.name, &out.len));
    REFUSES(NULL, tollgate_rules_header(rules, 0, NULL, &out.len));
    REFUSES(NULL, tollgate_rules_header(rules, 0, &out.name, NULL));
    REFUSES(NULL, tollgate_rules_policy_count(NULL, &out.count));
    REFUSES(NULL, tollgate_rules_policy_count(rules, NULL));
    REFUSES(NULL, tollgate_rules_policy(NULL, 0, &out.policy));
    REFUSES(NULL, tollgate_rules_policy(rules, 0, NULL));
    REFUSES(NULL, tollgate_rules_notice(NULL, 0, 0, out.text, sizeof out.text, &out.len));
    REFUSES(NULL, tollgate_rules_notice(rules, 0, 0, NULL, sizeof out.text, &out.len));
    REFUSES(NULL, tollgate_rules_notice(rules, 0, 0, NULL, 0, &out.len));
    REFUSES(NULL, tollgate_rules_notice(rules, 0, 0, out.text, sizeof out.text, NULL));
    REFUSES(NULL, tollgate_rules_fields(NULL, &out.family));
    REFUSES(NULL, tollgate_rules_fields(rules, NULL));
    REFUSES(NULL, tollgate_rules_accepts(NULL, &table, NULL, 0));
    REFUSES(NULL, tollgate_rules_accepts(rules, NULL, NULL, 0));
    REFUSES(NULL, tollgate_rules_check(NULL, &table, &good, 0, &out.answer));
    REFUSES(NULL, tollgate_rules_check(rules, NULL, &good, 0, &out.answer));
    REFUSES(NULL, tollgate_rules_check(rules, &table, NULL, 0, &out.answer));
    REFUSES(NULL, tollgate_rules_check(rules, &table, &good, 0, NULL));
    REFUSES(NULL, tollgate_rules_release(NULL, &out.answer));
    REFUSES(NULL, tollgate_rules_release(&table, NULL));
    good.headers = NULL;
    REFUSES(NULL, tollgate_rules_check(rules, &table, &good, 0, &out.answer));
    tollgate_rules_free(NULL);

    static union {
        uint64_t numbers[512];
        char bytes[4096];
    } zeros;
    const tollgate_rules *never_made = (const tollgate_rules *)zeros.numbers;
    good = good_attributes(&key);
    REFUSES(ARGUMENT, tollgate_rules_check(never_made, &table, &good, 0, &out.answer));
    REFUSES(ARGUMENT, tollgate_rules_fields(never_made, &out.family));
    REFUSES(ARGUMENT, tollgate_rules_notice(never_made, 0, 0, out.text, sizeof out.text, &out.len));
    REFUSES(ALIGN,
            tollgate_rules_fields((const tollgate_rules *)(void *)(zeros.bytes + 1), &out.family));
}

static void values_are_checked(void) {
    tollgate_bytes key = bytes("k");
    tollgate_attributes bad = good_attributes(&key);
    REFUSES(RANGE, tollgate_rules_header(rules, 1, &out.name, &out.len));
    REFUSES(RANGE, tollgate_rules_header(rules, SIZE_MAX, &out.name, &out.len));
    REFUSES(RANGE, tollgate_rules_policy(rules, 1, &out.policy));
    REFUSES(RANGE, tollgate_rules_notice(rules, 0, 2, out.text, sizeof out.text, &out.len));
    REFUSES(RANGE, tollgate_rules_notice(rules, 0, SIZE_MAX, out.text, sizeof out.text, &out.len));
    REFUSES(SIZE, tollgate_rules_notice(rules, 0, 0, out.text, 10, &out.len));
    REFUSES(SIZE, tollgate_rules_notice(rules, 0, 0, out.text, SIZE_MAX, &out.len));
    bad.struct_size = 0;
    REFUSES(ARGUMENT, tollgate_rules_check(rules, &table, &bad, 0, &out.answer));
    bad = good_attributes(&key);
    bad.reserved = 1;
    REFUSES(ARGUMENT, tollgate_rules_check(rules, &table, &bad, 0, &out.answer));
    bad = good_attributes(&key);
    bad.header_count = 0;
    REFUSES(ARGUMENT, tollgate_rules_check(rules, &table, &bad, 0, &out.answer));
    bad.header_count = SIZE_MAX;
    REFUSES(ARGUMENT, tollgate_rules_check(rules, &table, &bad, 0, &out.answer));
    bad = good_attributes(&key);
    bad.path.len = SIZE_MAX;
    REFUSES(SIZE, tollgate_rules_check(rules, &table, &bad, 0, &out.answer));
}

static void broken_documents_are_refused_with_a_reason(void) {
    static const char *const broken[] = {
        "",
        "{",
        "[]",
        "null",
        "{}",
        "{ \"policies\": 3 }",
        "{ \"policies\": [] }",
        "{ \"policies\": [ { \"name\": \"p\" } ] }",
        "{ \"policies\": [ {} ], \"x\": 1 }",
        "\xff\xfe",
    };
    char reason[256], one[1];
    for (size_t i = 0; i < COUNT(broken); i++) {
        memset(reason, 0, sizeof reason);
        REFUSES(PARSE, tollgate_rules_parse(broken[i], strlen(broken[i]), seed, 0, &out.rules,
                                            reason, sizeof reason));
        HOLDS(strlen(reason) > 8);
        REFUSES(PARSE, tollgate_rules_parse(broken[i], strlen(broken[i]), seed, 0, &out.rules, one,
                                            sizeof one));
        HOLDS(one[0] == 0);
        REFUSES(PARSE,
                tollgate_rules_parse(broken[i], strlen(broken[i]), seed, 0, &out.rules, NULL, 99));
    }
    for (size_t len = 0; len < strlen(DOCUMENT); len++) {
        REFUSES(PARSE,
                tollgate_rules_parse(DOCUMENT, len, seed, 0, &out.rules, reason, sizeof reason));
    }
}

static void requests_are_answered(void) {
    tollgate_bytes key = bytes("k");
    tollgate_attributes request = good_attributes(&key);
    for (int i = 0; i < 3; i++) {
        ACCEPTS(tollgate_rules_check(rules, &table, &request, SECOND, &out.answer));
        HOLDS(out.answer.allowed == (i < 2) && out.answer.status == (i < 2 ? 0u : 429u));
        HOLDS(out.answer.count == 1 && out.answer.tightest == 0 &&
              strcmp(out.answer.policy, "p") == 0);
        ACCEPTS(tollgate_rules_release(&table, &out.answer));
    }
    size_t count;
    tollgate_http_field fields[TOLLGATE_HTTP_FIELDS_MAX];
    char buffer[TOLLGATE_HTTP_BUFFER_SIZE];
    ACCEPTS(tollgate_http_fields(TOLLGATE_FIELDS_X_RATELIMIT, "p", 1, &out.answer.limit,
                                 &out.answer.layers[0].decision, buffer, sizeof buffer, fields,
                                 &count));
    HOLDS(count == 4);

    key.data = NULL; /* the header field is not there */
    ACCEPTS(tollgate_rules_check(rules, &table, &request, SECOND, &out.answer));
    HOLDS(!out.answer.allowed && out.answer.status == 401 &&
          strcmp(out.answer.missing, "x-api-key") == 0);

    char *large = (char *)allocate(1 << 20);
    for (int fill = 0; fill < 256; fill++) {
        memset(large, fill, 1 << 20);
        key.data = large;
        key.len = 1 << 20;
        request.peer = key;
        request.host = request.method = request.route = key;
        ACCEPTS(
            tollgate_rules_check(rules, &table, &request, fill % 2 ? UINT64_MAX : 0, &out.answer));
    }
    free(large);
    memset(&out, UNTOUCHED, sizeof out);
}

/* Denials that are no 429: who does not tell who they are, and who speaks gRPC. */
static void other_denials(void) {
    size_t count, len;
    uint32_t is;
    tollgate_decision denied, odd;
    tollgate_http_field fields[TOLLGATE_HTTP_FIELDS_MAX];
    char buffer[TOLLGATE_HTTP_BUFFER_SIZE], body[TOLLGATE_HTTP_PROBLEM_SIZE], quotes[200];
    memset(&denied, 0, sizeof denied);
    denied.limit = 1;
    denied.retry_after_ns = SECOND;
    REFUSES(NULL, tollgate_http_missing_fields(NULL, 1, buffer, sizeof buffer, fields, &out.count));
    REFUSES(NULL, tollgate_http_missing_fields("x", 1, NULL, 0, fields, &out.count));
    REFUSES(NULL, tollgate_http_missing_fields("x", 1, buffer, sizeof buffer, NULL, &out.count));
    REFUSES(NULL, tollgate_http_missing_fields("x", 1, buffer, sizeof buffer, fields, NULL));
    REFUSES(NULL, tollgate_http_missing_problem(NULL, 1, body, sizeof body, &out.len));
    REFUSES(NULL, tollgate_http_missing_problem("x", 1, NULL, 0, &out.len));
    REFUSES(NULL, tollgate_http_missing_problem("x", 1, body, sizeof body, NULL));
    REFUSES(NULL, tollgate_http_path(NULL, 1, body, sizeof body, &out.len));
    REFUSES(NULL, tollgate_http_path("/", 1, NULL, 1, &out.len));
    REFUSES(NULL, tollgate_http_path("/", 1, body, sizeof body, NULL));
    REFUSES(SIZE, tollgate_http_path("/", 1, NULL, 0, &out.len));
    REFUSES(SIZE, tollgate_http_path("/a?b", 4, body, 3, &out.len));
    REFUSES(NULL, tollgate_http_is_grpc(NULL, 1, &out.family));
    REFUSES(NULL, tollgate_http_is_grpc("x", 1, NULL));
    REFUSES(NULL, tollgate_http_grpc(NULL, 1, &denied, buffer, sizeof buffer, fields, &out.count));
    REFUSES(NULL, tollgate_http_grpc("x", 1, &denied, NULL, 0, fields, &out.count));
    REFUSES(NULL, tollgate_http_grpc("x", 1, &denied, buffer, sizeof buffer, NULL, &out.count));
    REFUSES(NULL, tollgate_http_grpc("x", 1, &denied, buffer, sizeof buffer, fields, NULL));
    REFUSES(PARSE,
            tollgate_http_missing_fields("\xff", 1, buffer, sizeof buffer, fields, &out.count));
    REFUSES(PARSE, tollgate_http_missing_problem("\xff", 1, body, sizeof body, &out.len));
    REFUSES(PARSE, tollgate_http_grpc("\xff", 1, NULL, buffer, sizeof buffer, fields, &out.count));
    REFUSES(SIZE, tollgate_http_missing_fields("x", 1, buffer, 3, fields, &out.count));
    REFUSES(SIZE, tollgate_http_missing_problem("x", 1, body, 3, &out.len));
    REFUSES(SIZE, tollgate_http_grpc("x", 1, &denied, buffer, 3, fields, &out.count));

    ACCEPTS(tollgate_http_missing_fields("x-api-key", 9, buffer, sizeof buffer, fields, &count));
    HOLDS(count == 1 && fields[0].name_len == 16 && fields[0].value == buffer);
    ACCEPTS(tollgate_http_missing_problem("x-api-key", 9, body, sizeof body, &len));
    HOLDS(len > 2 && body[0] == '{' && memchr(body, 0, len) == NULL);
    ACCEPTS(tollgate_http_grpc("p", 1, &denied, buffer, sizeof buffer, fields, &count));
    HOLDS(count == 3 && fields[1].value_len == 1 && fields[1].value[0] == '8');
    denied.limit = 0; /* no limit could be asked */
    ACCEPTS(tollgate_http_grpc("p", 1, &denied, buffer, sizeof buffer, fields, &count));
    HOLDS(count == 3 && fields[1].value_len == 2 && memcmp(fields[1].value, "14", 2) == 0);
    ACCEPTS(tollgate_http_grpc("x-api-key", 9, NULL, buffer, sizeof buffer, fields, &count));
    HOLDS(count == 3 && fields[1].value_len == 2 && memcmp(fields[1].value, "16", 2) == 0);
    for (int fill = 1; fill < 128; fill++) { /* whatever a name holds fits, and is no line's end */
        memset(quotes, fill, sizeof quotes);
        memset(&odd, fill, sizeof odd);
        odd.allowed = odd.reserved = 0;
        ACCEPTS(tollgate_http_missing_fields(quotes, 200, buffer, sizeof buffer, fields, &count));
        HOLDS(memchr(fields[0].value, '\n', fields[0].value_len) == NULL);
        ACCEPTS(tollgate_http_missing_problem(quotes, 200, body, sizeof body, &len));
        ACCEPTS(tollgate_http_grpc(quotes, 200, &odd, buffer, sizeof buffer, fields, &count));
        HOLDS(memchr(fields[2].value, '\n', fields[2].value_len) == NULL);
        ACCEPTS(tollgate_http_grpc(quotes, 200, NULL, buffer, sizeof buffer, fields, &count));
        HOLDS(memchr(fields[2].value, '\n', fields[2].value_len) == NULL);
    }

    ACCEPTS(tollgate_http_path("/x/..//%6cogin?a", 16, body, 16, &len));
    HOLDS(len == 6 && memcmp(body, "/login", 6) == 0);
    ACCEPTS(tollgate_http_path(NULL, 0, NULL, 0, &len));
    HOLDS(len == 0);
    ACCEPTS(tollgate_http_is_grpc("application/grpc+proto", 22, &is));
    HOLDS(is == 1);
    ACCEPTS(tollgate_http_is_grpc("application/grpc-web", 20, &is));
    HOLDS(is == 0);
    ACCEPTS(tollgate_http_is_grpc("", 0, &is));
    HOLDS(is == 0);
    memset(&out, UNTOUCHED, sizeof out);
}

static void histograms_and_top_keys(void) {
    size_t size, align, count;
    tollgate_histogram_snapshot snapshot;
    tollgate_bytes key = bytes("k");
    tollgate_attributes request = good_attributes(&key);
    REFUSES(NULL, tollgate_histogram_layout(NULL, &out.align));
    REFUSES(NULL, tollgate_histogram_layout(&out.size, NULL));
    REFUSES(NULL, tollgate_top_layout(NULL, &out.align));
    REFUSES(NULL, tollgate_top_layout(&out.size, NULL));
    REFUSES(NULL, tollgate_histogram_record(NULL, 1));
    REFUSES(NULL, tollgate_histogram_read(NULL, &snapshot));
    REFUSES(NULL, tollgate_top_read(NULL, out.top, 2, &out.count));

    ACCEPTS(tollgate_histogram_layout(&size, &align));
    HOLDS(align == 64);
    char *room = (char *)allocate(size);
    memset(room, 0, size);
    tollgate_histogram *histogram = (tollgate_histogram *)(void *)room;
    REFUSES(ALIGN, tollgate_histogram_record((tollgate_histogram *)(void *)(room + 1), 1));
    REFUSES(NULL, tollgate_histogram_read(histogram, NULL));
    ACCEPTS(tollgate_histogram_record(histogram, 1000));
    ACCEPTS(tollgate_histogram_record(histogram, UINT64_MAX));
    ACCEPTS(tollgate_histogram_read(histogram, &snapshot));
    HOLDS(snapshot.count == 2 && snapshot.at_most[9] == 0 && snapshot.at_most[10] == 1);
    free(room);

    ACCEPTS(tollgate_top_layout(&size, &align));
    room = (char *)allocate(size);
    memset(room, 0, size);
    tollgate_top *top = (tollgate_top *)(void *)room;
    REFUSES(NULL, tollgate_top_record(NULL, rules, &table, &request, SECOND));
    REFUSES(NULL, tollgate_top_record(top, NULL, &table, &request, SECOND));
    REFUSES(NULL, tollgate_top_record(top, rules, NULL, &request, SECOND));
    REFUSES(NULL, tollgate_top_record(top, rules, &table, NULL, SECOND));
    REFUSES(NULL, tollgate_top_read(top, NULL, 2, &out.count));
    REFUSES(NULL, tollgate_top_read(top, out.top, 2, NULL));
    REFUSES(SIZE, tollgate_top_read(top, out.top, SIZE_MAX, &out.count));
    request.header_count = 2;
    REFUSES(ARGUMENT, tollgate_top_record(top, rules, &table, &request, SECOND));
    request.header_count = 1;
    for (int i = 0; i < 5; i++) {
        ACCEPTS(tollgate_rules_check(rules, &table, &request, SECOND, &out.answer));
        if (!out.answer.allowed) {
            ACCEPTS(tollgate_top_record(top, rules, &table, &request, SECOND));
        }
    }
    ACCEPTS(tollgate_top_read(top, out.top, 2, &count));
    HOLDS(count == 1 && out.top[0].count >= 3 && strcmp(out.top[0].policy, "p") == 0);
    HOLDS(strncmp(out.top[0].key, "api_key=sha256:", 15) == 0);
    free(room);
    memset(&out, UNTOUCHED, sizeof out);
}

int main(void) {
    prepare();
    (void)counters, (void)decision; /* of no use here */
    ACCEPTS(tollgate_rules_parse(DOCUMENT, strlen(DOCUMENT), seed, 0, &rules, NULL, 0));
    memset(&out, UNTOUCHED, sizeof out);
    pointers_are_checked();
    values_are_checked();
    broken_documents_are_refused_with_a_reason();
    requests_are_answered();
    other_denials();
    histograms_and_top_keys();

    size_t count, len;
    const char *name;
    tollgate_policy policy;
    uint32_t family;
    ACCEPTS(tollgate_rules_header_count(rules, &count));
    HOLDS(count == 1);
    ACCEPTS(tollgate_rules_header(rules, 0, &name, &len));
    HOLDS(len == 9 && memcmp(name, "x-api-key", len) == 0);
    ACCEPTS(tollgate_rules_policy_count(rules, &count));
    HOLDS(count == 1);
    ACCEPTS(tollgate_rules_policy(rules, 0, &policy));
    HOLDS(policy.name_len == 1 && policy.name[0] == 'p' && policy.limits == 1 && !policy.dry_run);
    char notice[TOLLGATE_NOTICE_SIZE];
    ACCEPTS(tollgate_rules_notice(rules, 0, 0, notice, sizeof notice, &len));
    HOLDS(len == 60 &&
          memcmp(notice, "policy p: counted on this machine, as this host has no Redis", 60) == 0);
    REFUSES(RANGE, tollgate_rules_notice(rules, 1, 0, notice, sizeof notice, &len));
    ACCEPTS(tollgate_rules_fields(rules, &family));
    HOLDS(family == TOLLGATE_FIELDS_X_RATELIMIT);
    ACCEPTS(tollgate_rules_accepts(rules, &table, NULL, 0));
    tollgate_rules_free(rules);
    return finish();
}
