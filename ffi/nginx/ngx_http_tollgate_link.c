
/*
 * The sockets of an engine: its bytes are moved, and it is told the time.
 * All that they mean is the library's to know.
 */


#include "ngx_http_tollgate.h"

#include <poll.h>


/* turns of one call of ..._run(), so that no peer keeps a worker busy */
#define NGX_HTTP_TOLLGATE_MAX_READS  16


static void ngx_http_tollgate_actions(ngx_http_tollgate_engine_t *engine);
static void ngx_http_tollgate_connect(ngx_http_tollgate_engine_t *engine,
    tollgate_redis_action *action);
static ngx_int_t ngx_http_tollgate_parse_address(tollgate_bytes *address,
    ngx_sockaddr_t *sa, socklen_t *socklen);
static void ngx_http_tollgate_connected(ngx_http_tollgate_link_t *link);
static void ngx_http_tollgate_disconnected(ngx_http_tollgate_link_t *link,
    ngx_err_t err, char *what);
static void ngx_http_tollgate_back(ngx_http_tollgate_engine_t *engine);
static void ngx_http_tollgate_close(ngx_http_tollgate_link_t *link);
static void ngx_http_tollgate_read(ngx_http_tollgate_link_t *link);
static void ngx_http_tollgate_write(ngx_http_tollgate_link_t *link);
static void ngx_http_tollgate_read_handler(ngx_event_t *rev);
static void ngx_http_tollgate_write_handler(ngx_event_t *wev);
static void ngx_http_tollgate_engine_handler(ngx_event_t *ev);
static void ngx_http_tollgate_arm(ngx_http_tollgate_engine_t *engine);


/* all that there is to do now; the timer is set to what comes next */

void
ngx_http_tollgate_run(ngx_http_tollgate_engine_t *engine)
{
    ngx_uint_t  i;

    if (engine->redis == NULL) {
        return;
    }

    if (engine->timer.handler == NULL) {
        engine->timer.handler = ngx_http_tollgate_engine_handler;
        engine->timer.data = engine;
        engine->timer.log = engine->log;

        engine->flush.handler = ngx_http_tollgate_engine_handler;
        engine->flush.data = engine;
        engine->flush.log = engine->log;
    }

    if (engine->running) {
        ngx_post_event(&engine->flush, &ngx_posted_events);
        return;
    }

    engine->running = 1;

    (void) tollgate_redis_process(engine->redis, &engine->zone->table,
                                  engine->conf->sh->metrics,
                                  ngx_http_tollgate_now());

    ngx_http_tollgate_actions(engine);

    for (i = 0; i < NGX_HTTP_TOLLGATE_MAX_LINKS; i++) {
        if (engine->links[i].connection) {
            ngx_http_tollgate_write(&engine->links[i]);
        }
    }

    if (engine->down) {
        ngx_http_tollgate_back(engine);
    }

    /* requests go on, and may ask anew: that is posted */

    ngx_http_tollgate_answers(engine);

    engine->running = 0;

    ngx_http_tollgate_arm(engine);
}


/*
 * As ..._run(), and waits, outside of the event loop: while a worker starts,
 * until its connections are ready, and while it ends, until all that it
 * sent is answered.  No longer than "limit" milliseconds, and not at all for
 * a server that refuses to be connected.
 */

void
ngx_http_tollgate_pump(ngx_http_tollgate_engine_t *engine, ngx_msec_t limit,
    ngx_uint_t until_ready)
{
    int                        n;
    uint64_t                   now, end;
    ngx_uint_t                 i, open;
    struct pollfd              fds[NGX_HTTP_TOLLGATE_MAX_LINKS];
    ngx_connection_t          *c;
    tollgate_redis_state       state;
    ngx_http_tollgate_link_t  *links[NGX_HTTP_TOLLGATE_MAX_LINKS];

    now = ngx_http_tollgate_now();
    end = now + (uint64_t) limit * 1000000;

    for ( ;; ) {

        (void) tollgate_redis_process(engine->redis, &engine->zone->table,
                                      engine->conf->sh->metrics, now);

        ngx_http_tollgate_actions(engine);

        open = 0;

        for (i = 0; i < NGX_HTTP_TOLLGATE_MAX_LINKS; i++) {

            if (engine->links[i].connection) {
                ngx_http_tollgate_write(&engine->links[i]);
            }

            c = engine->links[i].connection;

            if (c) {
                links[open] = &engine->links[i];
                fds[open].fd = c->fd;
                fds[open].events = c->write->ready ? POLLIN : POLLIN|POLLOUT;
                fds[open].revents = 0;
                open++;
            }
        }

        now = ngx_http_tollgate_now();

        if (open == 0
            || now >= end
            || tollgate_redis_read_state(engine->redis, now, &state)
               != TOLLGATE_OK
            || (until_ready ? state.whole : state.in_flight == 0))
        {
            return;
        }

        n = poll(fds, open, (int) ngx_http_tollgate_ms(end - now));

        if (n == -1 && ngx_errno != NGX_EINTR) {
            return;
        }

        for (i = 0; n > 0 && i < open; i++) {

            if (fds[i].revents == 0 || links[i]->connection == NULL) {
                continue;
            }

            c = links[i]->connection;

            if (fds[i].revents & ~POLLIN) {
                c->write->ready = 1;
                ngx_http_tollgate_connected(links[i]);
            }

            if (links[i]->connection && (fds[i].revents & ~POLLOUT)) {
                c->read->ready = 1;
#if (NGX_HAVE_EPOLLRDHUP)
                c->read->available = -1;
#endif
                ngx_http_tollgate_read(links[i]);
            }
        }

        now = ngx_http_tollgate_now();
    }
}


void
ngx_http_tollgate_hang_up(ngx_http_tollgate_engine_t *engine)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_TOLLGATE_MAX_LINKS; i++) {
        if (engine->links[i].connection) {
            ngx_http_tollgate_close(&engine->links[i]);
        }
    }

    if (engine->timer.timer_set) {
        ngx_del_timer(&engine->timer);
    }

    if (engine->flush.posted) {
        ngx_delete_posted_event(&engine->flush);
    }
}


static void
ngx_http_tollgate_actions(ngx_http_tollgate_engine_t *engine)
{
    tollgate_redis_action      action;
    ngx_http_tollgate_link_t  *link;

    for ( ;; ) {

        if (tollgate_redis_next_action(engine->redis, ngx_http_tollgate_now(),
                                       &action)
            != TOLLGATE_OK
            || action.kind == TOLLGATE_ACTION_NONE
            || action.link >= NGX_HTTP_TOLLGATE_MAX_LINKS)
        {
            return;
        }

        link = &engine->links[action.link];

        if (action.kind == TOLLGATE_ACTION_CONNECT) {
            ngx_http_tollgate_connect(engine, &action);
            continue;
        }

        engine->err = 0;

        if (ngx_http_tollgate_may_log(engine->conf)) {
            engine->down = 1;

            if (action.words.len) {
                ngx_log_error(NGX_LOG_ERR, engine->log, 0,
                              "Redis %s refused us: %*s", link->name,
                              action.words.len, action.words.data);

            } else {
                ngx_log_error(NGX_LOG_ERR, engine->log, 0,
                              "the connection to Redis %s is given up: %*s",
                              link->name, action.reason.len,
                              action.reason.data);
            }
        }

        if (link->connection) {
            ngx_http_tollgate_close(link);
        }
    }
}


static void
ngx_http_tollgate_connect(ngx_http_tollgate_engine_t *engine,
    tollgate_redis_action *action)
{
    ngx_int_t                  rc;
    ngx_str_t                  name;
    ngx_sockaddr_t             sa;
    ngx_connection_t          *c;
    ngx_peer_connection_t      peer;
    ngx_http_tollgate_link_t  *link;

    link = &engine->links[action->link];

    if (link->connection) {
        ngx_http_tollgate_close(link);
    }

    name.data = link->name;
    name.len = ngx_snprintf(link->name, NGX_SOCKADDR_STRLEN, "%*s",
                            action->address.len, action->address.data)
               - link->name;
    link->name[name.len] = '\0';

    ngx_memzero(&peer, sizeof(ngx_peer_connection_t));

    if (ngx_http_tollgate_parse_address(&action->address, &sa, &peer.socklen)
        != NGX_OK)
    {
        ngx_http_tollgate_disconnected(link, 0, "has an address that is not "
                                       "a number");
        return;
    }

    peer.sockaddr = &sa.sockaddr;
    peer.name = &name;
    peer.get = ngx_event_get_peer;
    peer.log = &engine->quiet;
    peer.log_error = NGX_ERROR_ERR;

    ngx_set_errno(0);

    rc = ngx_event_connect_peer(&peer);

    if (rc == NGX_ERROR || rc == NGX_BUSY || rc == NGX_DECLINED) {
        ngx_http_tollgate_disconnected(link, ngx_socket_errno,
                                       "cannot be connected");
        return;
    }

    c = peer.connection;

    c->data = link;
    c->addr_text.len = 0;
    c->sendfile = 0;
    c->read->handler = ngx_http_tollgate_read_handler;
    c->write->handler = ngx_http_tollgate_write_handler;

    link->connection = c;
    link->connected = 0;

    if (sa.sockaddr.sa_family != AF_UNIX) {
        (void) ngx_tcp_nodelay(c);
    }

    if (rc == NGX_OK) {
        c->write->ready = 1;
        ngx_http_tollgate_connected(link);
    }
}


/* as a server tells where another one is: the port behind the last colon */

static ngx_int_t
ngx_http_tollgate_parse_address(tollgate_bytes *address, ngx_sockaddr_t *sa,
    socklen_t *socklen)
{
    u_char     *text, *colon;
    size_t      len;
    ngx_int_t   port;

    text = (u_char *) address->data;
    len = address->len;

    ngx_memzero(sa, sizeof(ngx_sockaddr_t));

#if (NGX_HAVE_UNIX_DOMAIN)

    if (len > 5 && ngx_strncmp(text, "unix:", 5) == 0) {

        if (len - 5 >= sizeof(sa->sockaddr_un.sun_path)) {
            return NGX_ERROR;
        }

        sa->sockaddr_un.sun_family = AF_UNIX;
        ngx_memcpy(sa->sockaddr_un.sun_path, text + 5, len - 5);
        *socklen = sizeof(struct sockaddr_un);

        return NGX_OK;
    }

#endif

    for (colon = text + len; colon > text && colon[-1] != ':'; colon--) {
        /* void */
    }

    if (colon == text) {
        return NGX_ERROR;
    }

    port = ngx_atoi(colon, text + len - colon);

    if (port < 1 || port > 65535) {
        return NGX_ERROR;
    }

    len = colon - 1 - text;

    if (len > 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }

    sa->sockaddr_in.sin_addr.s_addr = ngx_inet_addr(text, len);

    if (sa->sockaddr_in.sin_addr.s_addr != INADDR_NONE) {
        sa->sockaddr_in.sin_family = AF_INET;
        sa->sockaddr_in.sin_port = htons((in_port_t) port);
        *socklen = sizeof(struct sockaddr_in);

        return NGX_OK;
    }

#if (NGX_HAVE_INET6)

    ngx_memzero(sa, sizeof(ngx_sockaddr_t));

    if (ngx_inet6_addr(text, len, sa->sockaddr_in6.sin6_addr.s6_addr)
        == NGX_OK)
    {
        sa->sockaddr_in6.sin6_family = AF_INET6;
        sa->sockaddr_in6.sin6_port = htons((in_port_t) port);
        *socklen = sizeof(struct sockaddr_in6);

        return NGX_OK;
    }

#endif

    return NGX_ERROR;
}


static void
ngx_http_tollgate_connected(ngx_http_tollgate_link_t *link)
{
    int                          err;
    socklen_t                    len;
    ngx_http_tollgate_engine_t  *engine;

    if (link->connected) {
        return;
    }

    err = 0;
    len = sizeof(int);

    if (getsockopt(link->connection->fd, SOL_SOCKET, SO_ERROR, (void *) &err,
                   &len)
        == -1)
    {
        err = ngx_socket_errno;
    }

    if (err) {
        ngx_http_tollgate_disconnected(link, err, "cannot be connected");
        return;
    }

    engine = link->engine;
    link->connected = 1;

    (void) tollgate_redis_connected(engine->redis, link->number,
                                    ngx_http_tollgate_now());
}


static void
ngx_http_tollgate_disconnected(ngx_http_tollgate_link_t *link, ngx_err_t err,
    char *what)
{
    ngx_http_tollgate_engine_t  *engine;

    engine = link->engine;
    engine->err = err;

    if (ngx_http_tollgate_may_log(engine->conf)) {
        engine->down = 1;

        ngx_log_error(NGX_LOG_ERR, engine->log, err, "Redis %s %s",
                      link->name, what);
    }

    if (link->connection) {
        ngx_http_tollgate_close(link);
    }

    (void) tollgate_redis_disconnected(engine->redis, link->number,
                                       ngx_http_tollgate_now());
}


/* a connection alone says nothing: it may be refused for its password */

static void
ngx_http_tollgate_back(ngx_http_tollgate_engine_t *engine)
{
    tollgate_redis_state  state;

    if (tollgate_redis_read_state(engine->redis, ngx_http_tollgate_now(),
                                  &state)
        != TOLLGATE_OK
        || !state.whole)
    {
        return;
    }

    engine->down = 0;
    engine->err = 0;

    ngx_log_error(NGX_LOG_NOTICE, engine->log, 0,
                  "Redis \"%V\" is connected again, and takes calls",
                  &engine->conf->name);
}


static void
ngx_http_tollgate_close(ngx_http_tollgate_link_t *link)
{
    ngx_close_connection(link->connection);

    link->connection = NULL;
    link->connected = 0;
    link->closed = 1;
}


static void
ngx_http_tollgate_read(ngx_http_tollgate_link_t *link)
{
    void                        *buf;
    size_t                       size;
    ssize_t                      n;
    ngx_err_t                    err;
    ngx_uint_t                   i;
    ngx_connection_t            *c;
    ngx_http_tollgate_engine_t  *engine;

    c = link->connection;
    engine = link->engine;

    for (i = 0; i < NGX_HTTP_TOLLGATE_MAX_READS; i++) {

        if (tollgate_redis_receive(engine->redis, link->number, &buf, &size)
            != TOLLGATE_OK)
        {
            return;
        }

        if (size == 0) {

            /* all of the buffer is to be read first */

            (void) tollgate_redis_process(engine->redis, &engine->zone->table,
                                          engine->conf->sh->metrics,
                                          ngx_http_tollgate_now());

            if (tollgate_redis_receive(engine->redis, link->number, &buf,
                                       &size)
                != TOLLGATE_OK
                || size == 0)
            {
                return;
            }
        }

        n = c->recv(c, buf, size);

        if (n == NGX_AGAIN) {
            return;
        }

        if (n == 0 || n == NGX_ERROR) {

            err = (n == 0) ? 0 : ngx_socket_errno;

            /* what it said before it went is why, as of a wrong password */

            link->closed = 0;

            (void) tollgate_redis_process(engine->redis, &engine->zone->table,
                                          engine->conf->sh->metrics,
                                          ngx_http_tollgate_now());

            ngx_http_tollgate_actions(engine);

            if (!link->closed) {
                ngx_http_tollgate_disconnected(link, err,
                                               "has closed the connection");
            }

            return;
        }

        (void) tollgate_redis_received(engine->redis, link->number, n);

        if (!c->read->ready) {
            return;
        }
    }

    /* there may be more */

    ngx_post_event(c->read, &ngx_posted_events);
}


static void
ngx_http_tollgate_write(ngx_http_tollgate_link_t *link)
{
    size_t             len;
    ssize_t            n;
    const void        *data;
    ngx_connection_t  *c;

    c = link->connection;

    while (link->connected && c->write->ready) {

        if (tollgate_redis_transmit(link->engine->redis, link->number, &data,
                                    &len)
            != TOLLGATE_OK
            || len == 0)
        {
            break;
        }

        n = c->send(c, (u_char *) data, len);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR) {
            ngx_http_tollgate_disconnected(link, ngx_socket_errno,
                                           "takes no more bytes");
            return;
        }

        (void) tollgate_redis_transmitted(link->engine->redis, link->number,
                                          n);
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        ngx_http_tollgate_disconnected(link, 0, "cannot be watched");
    }
}


static void
ngx_http_tollgate_read_handler(ngx_event_t *rev)
{
    ngx_connection_t            *c;
    ngx_http_tollgate_link_t    *link;
    ngx_http_tollgate_engine_t  *engine;

    c = rev->data;
    link = c->data;
    engine = link->engine;

    /* one that fails to be connected may be readable first */

    if (!link->connected) {
        ngx_http_tollgate_connected(link);
    }

    if (link->connection) {
        ngx_http_tollgate_read(link);
    }

    if (link->connection == c && ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_tollgate_disconnected(link, 0, "cannot be watched");
    }

    ngx_http_tollgate_run(engine);
}


static void
ngx_http_tollgate_write_handler(ngx_event_t *wev)
{
    ngx_connection_t            *c;
    ngx_http_tollgate_link_t    *link;
    ngx_http_tollgate_engine_t  *engine;

    c = wev->data;
    link = c->data;
    engine = link->engine;

    ngx_http_tollgate_connected(link);
    ngx_http_tollgate_run(engine);
}


static void
ngx_http_tollgate_engine_handler(ngx_event_t *ev)
{
    ngx_http_tollgate_run(ev->data);
}


static void
ngx_http_tollgate_arm(ngx_http_tollgate_engine_t *engine)
{
    uint64_t    at, now;
    ngx_msec_t  ms;

    /* a worker that ends stays for the requests that wait, and for no more */

    if (engine->timer.timer_set) {
        ngx_del_timer(&engine->timer);
    }

    engine->timer.cancelable = (engine->waiting == 0);

    if (tollgate_redis_timeout(engine->redis, &at) != TOLLGATE_OK
        || at == TOLLGATE_NEVER)
    {
        return;
    }

    now = ngx_http_tollgate_now();
    ms = (at > now) ? ngx_http_tollgate_ms(at - now) : 1;

    ngx_add_timer(&engine->timer, ms);
}
