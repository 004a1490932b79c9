
/*
 * ngx_http_tollgate_module: what its files share.
 *
 * The module parses directives, asks libtollgate and moves the answer into
 * the response.  Every number of a decision comes from the library.
 */


#ifndef _NGX_HTTP_TOLLGATE_H_INCLUDED_
#define _NGX_HTTP_TOLLGATE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <nginx.h>

#include <tollgate.h>


/* the library checks so many limits in one call, and so does a request */
#define NGX_HTTP_TOLLGATE_MAX_LIMITS       TOLLGATE_MAX_LAYERS

#define NGX_HTTP_TOLLGATE_MAX_NAME         55

/* room for all that can be wrong with a rules file, a line each */
#define NGX_HTTP_TOLLGATE_REASONS          32768

/* in the length of an entry's name: a policy's, not a limit's */
#define NGX_HTTP_TOLLGATE_POLICY           0x80

#define NGX_HTTP_TOLLGATE_PASSED           1
#define NGX_HTTP_TOLLGATE_DELAYED          2
#define NGX_HTTP_TOLLGATE_REJECTED         3
#define NGX_HTTP_TOLLGATE_DELAYED_DRY_RUN  4
#define NGX_HTTP_TOLLGATE_REJECTED_DRY_RUN 5


/*
 * One limit's counters, a cache line that no other limit's requests touch;
 * they outlive a reload, found again by name.
 */

typedef struct {
    tollgate_counters               counters;
    ngx_atomic_t                    generation;  /* of the last configuration
                                                    that named it, 0: free */
    u_char                          len;         /* and a policy's flag */
    u_char                          name[NGX_HTTP_TOLLGATE_MAX_NAME];
} ngx_http_tollgate_entry_t;


/*
 * The rules file as the workers of a zone last found it: which state of the
 * file was told about, so that a change is logged once and not by each.
 */

typedef struct {
    ngx_atomic_t                    told;        /* the state in force */
    ngx_atomic_t                    refused;     /* the state that is not */
    ngx_atomic_t                    loaded_at;   /* seconds since 1970 */
    ngx_atomic_t                    failed_at;
    ngx_atomic_t                    failed;      /* was the last one refused? */
    uint64_t                        reserved[3];
} ngx_http_tollgate_rules_state_t;


/*
 * What stands in the zone before the table.  The master writes it, and under
 * the pool's mutex a worker that finds new policies in the rules file.
 */

typedef struct {
    void                           *table;
    size_t                          table_size;
    uint64_t                        rows;
    uint64_t                        row_entries;
    ngx_atomic_t                    generation;
    ngx_uint_t                      nentries;
    tollgate_histogram             *histogram;   /* of what the rules take */
    tollgate_top                   *top;         /* keys that they deny */
    ngx_http_tollgate_rules_state_t rules;
    ngx_http_tollgate_entry_t       entries[1];
} ngx_http_tollgate_shctx_t;


typedef struct ngx_http_tollgate_rules_s   ngx_http_tollgate_rules_t;
typedef struct ngx_http_tollgate_engine_s  ngx_http_tollgate_engine_t;


typedef struct {
    ngx_str_t                       name;
    size_t                          size;        /* 0: named, not defined */
    uint64_t                        rows;
    uint64_t                        row_entries;

    tollgate_table                  table;       /* this process's view */
    ngx_http_tollgate_shctx_t      *sh;
    ngx_slab_pool_t                *shpool;

    ngx_array_t                     limits;      /* all that use the zone:
                                                    limit pointers */
    ngx_http_tollgate_rules_t      *rules;       /* asked in this zone */
    ngx_http_tollgate_engine_t     *engine;      /* of a worker with Redis */
    ngx_uint_t                      place;       /* among the rules' zones */
    ngx_uint_t                      policies;    /* "tollgate_policies" */
    u_char                         *file;
    ngx_uint_t                      line;
    u_char                         *used_file;   /* by "tollgate_policies" */
    ngx_uint_t                      used_line;
} ngx_http_tollgate_zone_t;


/* a parameter that may be text, one variable, or any mixture of both */

typedef struct {
    ngx_int_t                       index;       /* one variable, or -1 */
    ngx_str_t                       header;      /* and that is this header */
    ngx_uint_t                      header_hash;
    ngx_http_complex_value_t        complex;
} ngx_http_tollgate_value_t;


typedef struct {
    tollgate_limit                  limit;
    ngx_http_tollgate_zone_t       *zone;
    tollgate_counters              *counters;    /* in the zone */

    /*
     * Stands before the key's bytes in the table, so that limits of one
     * zone count apart; it is made of the limit's name and algorithm, so
     * that a rate may change and what is spent stays spent.
     */
    uint64_t                        scope;

    ngx_http_tollgate_value_t       key;
    ngx_http_tollgate_value_t       cost_value;
    uint64_t                        cost;

    ngx_str_t                       name;
    ngx_uint_t                      status;
    ngx_uint_t                      status_over;

    unsigned                        variable_cost:1;
    unsigned                        concurrency:1;
    unsigned                        delay:1;

    /* configuration and pages only */
    unsigned                        named:1;
    ngx_str_t                       key_text;
    ngx_str_t                       limit_text;
    uint64_t                        burst;
    ngx_uint_t                      algorithm;
    u_char                         *file;
    ngx_uint_t                      line;
} ngx_http_tollgate_limit_t;


/* the rules file, compiled; nothing of a request leads here */

typedef struct {
    tollgate_rules                 *rules;
    ngx_uint_t                      npolicies;
    uint64_t                        overrides;
    uint32_t                        fields;

    ngx_uint_t                      nheaders;
    uint64_t                        lengths;     /* of headers, one bit each */
    ngx_str_t                       headers[TOLLGATE_MAX_HEADERS];

    tollgate_counters             **counters;    /* of zone and policy */

    ngx_uint_t                      waits;       /* requests that wait for
                                                    an answer of these */
    unsigned                        unused:1;    /* other rules are in force */
} ngx_http_tollgate_version_t;


/* which file it was; a write within the clock's grain changes the crc only */

typedef struct {
    uint64_t                        mtime;       /* nanoseconds */
    uint64_t                        inode;
    uint64_t                        size;
    uint32_t                        crc32;
    unsigned                        missing:1;
    unsigned                        fresh:1;     /* may change unseen */
} ngx_http_tollgate_file_t;


typedef struct ngx_http_tollgate_load_s  ngx_http_tollgate_load_t;


/* one look at the file; a thread's own until it is done, with all it needs */

struct ngx_http_tollgate_load_s {
    ngx_str_t                       path;
    uint64_t                        seed[2];
    tollgate_table                 *tables;      /* that it is to fit into */
    ngx_uint_t                      ntables;
    tollgate_redis_config          *redis;       /* that is to count them */
    ngx_http_tollgate_file_t        known;
    ngx_http_tollgate_file_t        file;        /* what was found */
    tollgate_rules                 *compiled;
    ngx_int_t                       result;
    ngx_err_t                       err;
    const char                     *what;        /* is wrong */
    ngx_uint_t                      done;
    unsigned                        check_known:1;
    unsigned                        accept:1;
    char                            message[NGX_HTTP_TOLLGATE_REASONS];
};


struct ngx_http_tollgate_rules_s {
    ngx_str_t                       path;
    ngx_msec_t                      interval;
    uint64_t                        seed[2];
    ngx_array_t                     zones;       /* that it is asked in */

    tollgate_redis_config          *redis;       /* or NULL */

    tollgate_rules                 *compiled;    /* until the zones are known */
    ngx_http_tollgate_version_t    *version;     /* this process's */
    ngx_http_tollgate_file_t        file;        /* last looked at */

    ngx_event_t                     event;
    ngx_http_tollgate_load_t       *load;        /* under way */

    u_char                         *conf_file;
    ngx_uint_t                      line;
};


/* "tollgate_redis": what all workers of this machine know of the store */

typedef struct {
    tollgate_store_metrics         *metrics;
    ngx_atomic_t                    logged_at;   /* seconds since 1970 */
} ngx_http_tollgate_redis_sh_t;


typedef struct {
    tollgate_redis_config           config;
    ngx_str_t                       name;        /* as it was written */
    ngx_http_tollgate_redis_sh_t   *sh;
    u_char                         *file;
    ngx_uint_t                      line;
} ngx_http_tollgate_redis_t;


/* one connection; a cluster has one for each of its nodes */

#define NGX_HTTP_TOLLGATE_MAX_LINKS  64

typedef struct {
    ngx_http_tollgate_engine_t     *engine;
    ngx_connection_t               *connection;  /* or NULL */
    uint32_t                        number;
    unsigned                        connected:1;
    unsigned                        closed:1;    /* since this was 0 */
    u_char                          name[NGX_SOCKADDR_STRLEN + 1];
} ngx_http_tollgate_link_t;


/* a worker's, for the policies that are asked in one zone */

struct ngx_http_tollgate_engine_s {
    tollgate_redis                 *redis;
    ngx_http_tollgate_redis_t      *conf;
    ngx_http_tollgate_zone_t       *zone;
    ngx_uint_t                      waiting;     /* requests */
    ngx_event_t                     timer;
    ngx_event_t                     flush;       /* posted when there may be
                                                    something to write */
    ngx_log_t                      *log;
    ngx_log_t                       quiet;       /* connections' own */
    ngx_http_tollgate_link_t        links[NGX_HTTP_TOLLGATE_MAX_LINKS];
    ngx_err_t                       err;         /* of the last connection
                                                    that failed */
    unsigned                        running:1;
    unsigned                        down:1;      /* was told about */
};


typedef struct {
    ngx_array_t                     zones;       /* zone pointers */
    ngx_http_tollgate_rules_t      *rules;
    ngx_http_tollgate_redis_t      *redis;
    ngx_int_t                       index;       /* the variable whose place
                                                    holds the context */
} ngx_http_tollgate_main_conf_t;


typedef struct {
    ngx_http_tollgate_limit_t     **limits;      /* those of a zone adjoin */
    ngx_uint_t                      nlimits;
    ngx_uint_t                      nholds;      /* concurrency limits */
    ngx_uint_t                      fields;
    ngx_flag_t                      dry_run;
    ngx_uint_t                      log_level;
    ngx_uint_t                      delay_log_level;
    ngx_uint_t                      set;         /* limits or "off" here */

    ngx_http_tollgate_zone_t       *policies;    /* where rules are asked */
    ngx_str_t                       route;
    ngx_uint_t                      family;      /* fields, or unset: as the
                                                    rules say */
    unsigned                        policies_set:1;
    unsigned                        merged:1;
} ngx_http_tollgate_conf_t;


typedef struct {
    const tollgate_table           *table;
    tollgate_hold                   hold;
} ngx_http_tollgate_hold_t;


/* what the limits of "tollgate" said to a request, until the rules agree */

typedef struct {
    uint64_t                        now;
    ngx_uint_t                      n;
    ngx_uint_t                      nholds;      /* 0: holds are not set */
    tollgate_hold                   holds[NGX_HTTP_TOLLGATE_MAX_LIMITS];
    tollgate_request                requests[NGX_HTTP_TOLLGATE_MAX_LIMITS];
    tollgate_decision               decisions[NGX_HTTP_TOLLGATE_MAX_LIMITS];
    ngx_http_tollgate_limit_t      *limits[NGX_HTTP_TOLLGATE_MAX_LIMITS];
} ngx_http_tollgate_asked_t;


typedef struct ngx_http_tollgate_wait_s  ngx_http_tollgate_wait_t;


/* one number on the page of metrics */

typedef struct {
    char                           *name;
    char                           *type;
    char                           *help;
    size_t                          offset;      /* in what holds it */
} ngx_http_tollgate_metric_t;


#define ngx_http_tollgate_number(snapshot, metric)                            \
    *(uint64_t *) ((u_char *) (snapshot) + (metric)->offset)


/* of the main request */

typedef struct {
    tollgate_decision               decision;    /* the tightest one */
    const tollgate_limit           *limit;       /* whose it is, or NULL */
    ngx_str_t                       name;        /* of a limit or policy */
    ngx_str_t                       missing;     /* header of a 401 */
    unsigned                        policy:1;    /* is it a policy's? */
    ngx_http_tollgate_zone_t       *zone;
    uint32_t                        fields;
    uint32_t                        status;
    uint32_t                        denial;      /* HTTP status */
    uint32_t                        source;      /* TOLLGATE_SOURCE_... */
    ngx_http_tollgate_wait_t       *wait;        /* not decided yet */
    ngx_msec_t                      delay;
    uint64_t                        until;       /* the delay's end, by
                                                    ngx_http_tollgate_now() */
    ngx_uint_t                      nholds;
    ngx_http_tollgate_hold_t        holds[1];    /* nholds of them */
} ngx_http_tollgate_ctx_t;


/* a request that waits for Redis, until the answer or the client's end */

struct ngx_http_tollgate_wait_s {
    ngx_http_request_t             *request;
    ngx_http_tollgate_conf_t       *conf;
    ngx_http_tollgate_ctx_t        *ctx;
    ngx_http_tollgate_engine_t     *engine;
    ngx_http_tollgate_version_t    *version;     /* it was asked of */
    ngx_http_tollgate_asked_t      *asked;
    uint64_t                        pending;     /* 0: not any more */
    ngx_int_t                       rc;
};


/* the files' own business: the shared object shows none of these names */

#pragma GCC visibility push(hidden)


/*
 * The clock that every process of this machine shares.  The cached time of
 * nginx lags behind by a loop's length, and a client that waited exactly as
 * long as it was told would then come too early.
 */

static ngx_inline uint64_t
ngx_http_tollgate_now(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}


/* The UNIX time at which that clock shows zero: quotas by the month need it. */

static ngx_inline uint64_t
ngx_http_tollgate_unix_at_zero(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_REALTIME, &ts);

    return (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec
           - ngx_http_tollgate_now();
}


/* timers have milliseconds; a request never goes on before its time */

#define ngx_http_tollgate_ms(ns)  (ngx_msec_t) (((ns) + 999999) / 1000000)


#define ngx_http_tollgate_ctx_place(r)                                        \
    (&(r)->main->variables[((ngx_http_tollgate_main_conf_t *)                 \
        ngx_http_get_module_main_conf(r, ngx_http_tollgate_module))->index])

ngx_http_tollgate_ctx_t *ngx_http_tollgate_get_ctx(ngx_http_request_t *r);

ngx_int_t ngx_http_tollgate_check(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t **ctxp);
ngx_int_t ngx_http_tollgate_conclude(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t *ctx,
    ngx_http_tollgate_asked_t *asked, ngx_http_tollgate_version_t *version,
    tollgate_answer *answer);
void ngx_http_tollgate_undo(ngx_http_tollgate_asked_t *asked, ngx_uint_t n);

ngx_int_t ngx_http_tollgate_ask(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t *ctx, uint64_t now,
    tollgate_answer *answer, uint64_t *pending);
void ngx_http_tollgate_tell_top(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_version_t *version,
    tollgate_answer *answer);
ngx_int_t ngx_http_tollgate_take(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t *ctx,
    ngx_http_tollgate_version_t *version, tollgate_answer *answer);
char *ngx_http_tollgate_policies(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

char *ngx_http_tollgate_rules(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
ngx_int_t ngx_http_tollgate_check_rules(ngx_conf_t *cf);
size_t ngx_http_tollgate_policies_room(ngx_http_tollgate_zone_t *zone);
u_char *ngx_http_tollgate_prometheus_rules(u_char *p,
    ngx_http_tollgate_rules_t *rules);
u_char *ngx_http_tollgate_json_policies(u_char *p,
    ngx_http_tollgate_zone_t *zone);
u_char *ngx_http_tollgate_json_rules(u_char *p,
    ngx_http_tollgate_rules_t *rules);
ngx_int_t ngx_http_tollgate_bind_rules(ngx_http_tollgate_zone_t *zone,
    ngx_log_t *log);
ngx_int_t ngx_http_tollgate_init_process(ngx_cycle_t *cycle);

char *ngx_http_tollgate_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
ngx_int_t ngx_http_tollgate_check_redis(ngx_conf_t *cf);
void ngx_http_tollgate_tell_fallback(ngx_http_tollgate_engine_t *engine,
    ngx_log_t *log);
ngx_uint_t ngx_http_tollgate_may_log(ngx_http_tollgate_redis_t *redis);

ngx_int_t ngx_http_tollgate_start_engines(ngx_cycle_t *cycle,
    ngx_http_tollgate_main_conf_t *tmcf);
void ngx_http_tollgate_exit_process(ngx_cycle_t *cycle);
void ngx_http_tollgate_run(ngx_http_tollgate_engine_t *engine);
void ngx_http_tollgate_pump(ngx_http_tollgate_engine_t *engine,
    ngx_msec_t limit, ngx_uint_t until_ready);
void ngx_http_tollgate_hang_up(ngx_http_tollgate_engine_t *engine);

ngx_int_t ngx_http_tollgate_await(ngx_http_request_t *r,
    ngx_http_tollgate_conf_t *tlcf, ngx_http_tollgate_ctx_t *ctx,
    ngx_http_tollgate_asked_t *asked, uint64_t pending);
void ngx_http_tollgate_answers(ngx_http_tollgate_engine_t *engine);
void ngx_http_tollgate_release_hold(ngx_http_tollgate_zone_t *zone,
    tollgate_hold *hold);

u_char *ngx_http_tollgate_prometheus_store(u_char *p,
    ngx_http_tollgate_redis_t *redis);
u_char *ngx_http_tollgate_json_store(u_char *p,
    ngx_http_tollgate_redis_t *redis);

ngx_int_t ngx_http_tollgate_create_version(ngx_http_tollgate_rules_t *rules,
    tollgate_rules *compiled, ngx_log_t *log,
    ngx_http_tollgate_version_t **versionp);
void ngx_http_tollgate_free_version(ngx_http_tollgate_version_t *version);
ngx_int_t ngx_http_tollgate_bind_version(
    ngx_http_tollgate_version_t *version, ngx_http_tollgate_zone_t *zone,
    ngx_uint_t live, tollgate_policy *policy);

ngx_http_tollgate_load_t *ngx_http_tollgate_create_load(
    ngx_http_tollgate_rules_t *rules);
void ngx_http_tollgate_stat(ngx_file_info_t *fi,
    ngx_http_tollgate_file_t *file);
void ngx_http_tollgate_read_rules(ngx_http_tollgate_load_t *load);
ngx_int_t ngx_http_tollgate_start_load(ngx_http_tollgate_load_t *load);
ngx_uint_t ngx_http_tollgate_load_done(ngx_http_tollgate_load_t *load);
ngx_int_t ngx_http_tollgate_abandon_load(void);
void ngx_http_tollgate_free_load(ngx_http_tollgate_load_t *load);

char *ngx_http_tollgate_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_tollgate(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

char *ngx_http_tollgate_name_limit(ngx_conf_t *cf,
    ngx_http_tollgate_limit_t *limit);
ngx_int_t ngx_http_tollgate_check_name(ngx_str_t *name);

ngx_http_tollgate_zone_t *ngx_http_tollgate_add_zone(ngx_conf_t *cf,
    ngx_str_t *name, size_t size);
ngx_int_t ngx_http_tollgate_check_reload(ngx_conf_t *cf,
    ngx_http_tollgate_zone_t *zone);
ngx_http_tollgate_entry_t *ngx_http_tollgate_entry(
    ngx_http_tollgate_shctx_t *sh, ngx_str_t *name, ngx_uint_t policy);
ngx_int_t ngx_http_tollgate_seed(uint64_t *seed, size_t size, ngx_log_t *log);
ngx_int_t ngx_http_tollgate_same_zone(ngx_log_t *log,
    ngx_http_tollgate_zone_t *zone, size_t size, uint64_t rows,
    uint64_t row_entries);
ngx_int_t ngx_http_tollgate_check_zones(ngx_conf_t *cf);

ngx_int_t ngx_http_tollgate_init_module(ngx_cycle_t *cycle);
void ngx_http_tollgate_exit_master(ngx_cycle_t *cycle);

ngx_int_t ngx_http_tollgate_deny(ngx_http_request_t *r,
    ngx_http_tollgate_ctx_t *ctx, ngx_uint_t status);
ngx_int_t ngx_http_tollgate_filter_init(ngx_conf_t *cf);

ngx_int_t ngx_http_tollgate_add_variables(ngx_conf_t *cf);
ngx_int_t ngx_http_tollgate_find_header(ngx_cycle_t *cycle,
    ngx_http_tollgate_value_t *value);

char *ngx_http_tollgate_metrics(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


extern ngx_module_t  ngx_http_tollgate_module;

extern ngx_http_tollgate_metric_t  ngx_http_tollgate_results[];


#pragma GCC visibility pop


#endif /* _NGX_HTTP_TOLLGATE_H_INCLUDED_ */
