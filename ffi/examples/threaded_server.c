/*
 * What a threaded server does for each request: one client for the whole process, shared by all of
 * its threads; limits that are counted in Redis, together with every other machine.
 *
 *   threaded_server [URL]      the default is redis://127.0.0.1
 */
#define _POSIX_C_SOURCE 200112L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tollgate.h>

enum { THREADS = 8, REQUESTS = 100 };

static const char RULES[] =
    "{ \"identity\": { \"api_key\": { \"header\": \"x-api-key\", \"required\": true } },"
    "  \"policies\": [ { \"name\": \"orders\", \"key\": [\"api_key\"],"
    "                    \"limits\": [ { \"rate\": \"1/m\", \"burst\": 500 } ],"
    "                    \"store\": \"redis\", \"timeout\": \"1s\", \"on_store_error\": \"deny\","
    "                    \"lease\": { \"max\": 50, \"ttl\": \"10s\" } } ] }";

static tollgate_client *client;

static void require(tollgate_status status, const char *what, const char *reason) {
    if (status != TOLLGATE_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, tollgate_status_str(status), reason);
        exit(1);
    }
}

static tollgate_bytes bytes(const char *text) {
    tollgate_bytes made;
    made.data = text;
    made.len = text ? strlen(text) : 0;
    return made;
}

/* One request; returns its HTTP status. `api_key` is NULL for one that has none. */
static uint32_t serve(const char *method, const char *path, const char *peer, const char *api_key) {
    /* In the order of tollgate_client_header: these rules name one field. */
    const tollgate_bytes headers[] = {bytes(api_key)};
    tollgate_attributes request;
    tollgate_answer answer;
    memset(&request, 0, sizeof request);
    request.struct_size = sizeof request;
    request.method = bytes(method);
    request.path = bytes(path); /* of a real request's target: by tollgate_http_path */
    request.peer = bytes(peer);
    request.headers = headers;
    request.header_count = 1;
    require(tollgate_client_check(client, &request, &answer), "check", path);
    if (!answer.allowed) {
        return answer.status; /* 429, 401, or 503; tollgate_http_fields writes what goes with it */
    }
    /* ... the work ... */
    require(tollgate_client_release(client, &answer), "release", path); /* of units in flight */
    return 200;
}

static void *run(void *served) {
    for (int i = 0; i < REQUESTS; i++) {
        *(int *)served += serve("POST", "/orders", "192.0.2.1", "the-key-of-ann") == 200;
    }
    return NULL;
}

int main(int count, char **arguments) {
    char reason[512] = "";
    tollgate_client_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.url = bytes(count > 1 ? arguments[1] : "redis://127.0.0.1");
    config.instance = TOLLGATE_NO_INSTANCE;
    require(tollgate_client_create(&config, RULES, strlen(RULES), &client, reason, sizeof reason),
            "client", reason);

    pthread_t threads[THREADS];
    int served[THREADS] = {0}, total = 0;
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, run, &served[i])) {
            return 1;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        total += served[i];
    }
    printf("%d threads asked %d times each: %d served, %d denied\n", THREADS, REQUESTS, total,
           THREADS * REQUESTS - total);
    printf("without a key: %u\n", (unsigned)serve("POST", "/orders", "192.0.2.1", NULL));

    tollgate_client_stats stats;
    require(tollgate_client_read(client, &stats), "read", "");
    if (total == 0 && stats.store.replies == 0) {
        printf("Redis did not answer: %s\n", *stats.trouble ? stats.trouble : "not connected");
    } else if (total < 500) {
        puts("an earlier run, or another machine, has spent tokens of this limit: 1 comes back a "
             "minute");
    } else {
        printf("%s than a call for each request\n",
               stats.store.calls < THREADS * REQUESTS / 2 ? "far fewer" : "hardly fewer");
    }
    tollgate_client_free(client); /* gives back what its leases still hold */
    return 0;
}
