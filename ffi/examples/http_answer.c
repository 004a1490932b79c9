/* A denial as an HTTP answer: status, header fields, problem body. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tollgate.h>

static void require(tollgate_status status, const char *what) {
    if (status != TOLLGATE_OK) {
        fprintf(stderr, "%s: %s\n", what, tollgate_status_str(status));
        exit(1);
    }
}

int main(void) {
    const char text[] = "fixed_window 100/m";
    tollgate_limit limit;
    require(tollgate_limit_parse(text, strlen(text), TOLLGATE_TOKEN_BUCKET, &limit, NULL, 0), text);

    /* What tollgate_bucket_check or tollgate_table_check would say: denied for 17.5 seconds. */
    tollgate_decision decision;
    memset(&decision, 0, sizeof decision);
    decision.limit = 100;
    decision.retry_after_ns = 17500000000;
    decision.reset_after_ns = 17500000000;

    const char name[] = "orders"; /* of the policy; clients see it */
    char values[TOLLGATE_HTTP_BUFFER_SIZE];
    tollgate_http_field fields[TOLLGATE_HTTP_FIELDS_MAX];
    size_t count;
    require(tollgate_http_fields(TOLLGATE_FIELDS_RATELIMIT, name, strlen(name), &limit, &decision,
                                 values, sizeof values, fields, &count),
            "fields");
    char body[TOLLGATE_HTTP_PROBLEM_SIZE];
    size_t length;
    require(tollgate_http_problem(429, name, strlen(name), &decision, body, sizeof body, &length),
            "problem");

    printf("HTTP/1.1 429 Too Many Requests\r\n");
    for (size_t i = 0; i < count; i++) {
        printf("%.*s: %.*s\r\n", (int)fields[i].name_len, fields[i].name, (int)fields[i].value_len,
               fields[i].value);
    }
    printf("Content-Type: application/problem+json\r\nContent-Length: %u\r\n\r\n%.*s",
           (unsigned)length, (int)length, body);
    return 0;
}
