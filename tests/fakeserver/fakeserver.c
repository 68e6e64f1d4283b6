/* A server that streams tokens on an exact schedule and writes down when it really sent them.
 *
 * One thread, one epoll loop, absolute deadlines. Speaks enough HTTP/1.1 and enough of the OpenAI API to pass for a vLLM
 * server: /v1/completions, /v1/chat/completions, /v1/models, /health, /version, /metrics, /truth (flushes the log).
 * Options are "name=value" arguments; see the table in main(). Prints "listening on PORT" once it is up.
 *
 * The log (log=FILE) holds, for each generation request, a header of 6 int64 (request number, tokens, writes, time the
 * request was fully read, time of its end, outcome) and, for each write, 2 int64 (time just before send(), tokens sent with
 * it); times in ns of CLOCK_MONOTONIC. Outcome: 0 whole, 1 error frame, 2 disconnected, 3 short, 4 HTTP error, 5 left
 * hanging, 6 client gone. The request number is in the response's id ("cmpl-N" or "chatcmpl-N").
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 8192
#define MAX_PATTERN 64

typedef struct { int64_t at, tokens; } Sent;

typedef struct {
    int fd, in_use, closing;
    char *in; size_t in_length, in_space;
    char *out; size_t out_length, out_at, out_space;
    /* the answer in progress */
    int busy, waiting, chat, usage, fate, hung, http10, headed;
    long number, asked, prompt, done, planned;
    int64_t read_at, start_at, due, first_at, last_at;
    Sent *sent; size_t sent_count, sent_space;
} Connection;

static Connection connections[MAX_CONNECTIONS];
static int poller, highest, running_count, waiting_count;
static FILE *truth;
static volatile sig_atomic_t ending;

/* options */
static double ttft_ms = 100, itl_ms = 16, stall_ms = 100, loading_ms = 0, prefill_ms_per_1k = 0;
static double pattern[MAX_PATTERN]; static int pattern_count;
static long stall_every, pack = 1, frame_tokens = 1, burst = 1, grid, role_frame, empty_last, usage_mode = 1, comments;
static long no_done, crlf, no_space, reasoning, error_every, error_after = 3, http_error_every, http_status = 503;
static long disconnect_every, disconnect_after = 3, hang_every, hang_after = 0, short_every, short_after = 3;
static long close_every, max_running, no_token_ids, fragment, fifo, cpu = -1, kv_tokens = 100000, max_context = 0;
static const char *model = "fake", *startup_log;

/* counters, as vLLM keeps them */
static double prompt_total, generation_total, success_total, iterations_sum, iterations_count, ttft_sum, ttft_count;
static double itl_sum, itl_count, e2e_sum, e2e_count, queue_sum, queue_count, prefill_sum, prefill_count, decode_sum;
static double decode_count, itl_buckets[14], ttft_buckets[12], flops_total, read_bytes_total, write_bytes_total;
static const double itl_bounds[14] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 1e300};
static const double ttft_bounds[12] = {0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 1e300};
static long request_number;
static int64_t booted_at;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *grown(void *old, size_t *space, size_t wanted, size_t unit) {
    if (wanted <= *space) return old;
    size_t bigger = *space ? *space : 64;
    while (bigger < wanted) bigger *= 2;
    old = realloc(old, bigger * unit);
    if (!old) { perror("realloc"); exit(1); }
    *space = bigger;
    return old;
}

static void watch(Connection *c, int writing) {
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void flush_out(Connection *c) {
    while (c->out_at < c->out_length) {
        size_t length = c->out_length - c->out_at;
        if (fragment && length > (size_t)fragment) length = (size_t)fragment;
        ssize_t sent = send(c->fd, c->out + c->out_at, length, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN || errno == EINTR) { watch(c, 1); return; }
            c->closing = 1;
            break;
        }
        c->out_at += (size_t)sent;
    }
    c->out_length = c->out_at = 0;
    watch(c, 0);
}

static void put(Connection *c, const char *data, size_t length) {
    c->out = grown(c->out, &c->out_space, c->out_length + length, 1);
    memcpy(c->out + c->out_length, data, length);
    c->out_length += length;
}

static void putf(Connection *c, const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(c, text, (size_t)length);
}

static void log_truth(Connection *c, int64_t outcome) {
    if (!truth) return;
    int64_t header[6] = {c->number, c->done, (int64_t)c->sent_count, c->read_at, now_ns(), outcome};
    fwrite(header, sizeof header, 1, truth);
    fwrite(c->sent, sizeof(Sent), c->sent_count, truth);
}

static void admit(void);

static void end_answer(Connection *c, int64_t outcome) {
    if (!c->busy) return;
    int64_t end = now_ns();
    if (c->waiting) waiting_count--; else running_count--;
    log_truth(c, outcome);
    if (outcome == 0 || outcome == 3) {
        success_total++;
        e2e_sum += (double)(end - c->read_at) / 1e9; e2e_count++;
        queue_sum += (double)(c->start_at - c->read_at) / 1e9; queue_count++;
        prefill_sum += (double)(c->first_at - c->start_at) / 1e9; prefill_count++;
        decode_sum += (double)(c->last_at - c->first_at) / 1e9; decode_count++;
    }
    c->busy = c->waiting = 0;
    admit();
}

static void drop(Connection *c) {
    if (!c->in_use) return;
    end_answer(c, c->fate == 2 ? 2 : c->hung ? 5 : 6);
    close(c->fd);
    c->in_use = 0; c->fd = -1;
}

static double gap_ms(Connection *c, long index) {
    double gap = pattern_count ? itl_ms * pattern[(index - 1) % pattern_count] : itl_ms;
    (void)c;
    if (stall_every && index % stall_every == 0) gap += stall_ms;
    return gap;
}

static void head(Connection *c);

static void start_answer(Connection *c) {
    int64_t now = now_ns();
    c->start_at = now;
    double wait = ttft_ms + prefill_ms_per_1k * (double)c->prompt / 1000;
    int64_t from = c->waiting ? now : c->read_at;
    c->due = from + (int64_t)(wait * 1e6);
    if (grid) {
        int64_t step = (int64_t)(itl_ms * 1e6);
        c->due += step - c->due % step;
    }
    if (c->waiting) { c->waiting = 0; waiting_count--; }
    running_count++;
    if (role_frame || comments) head(c);
}

static void admit(void) {
    while (waiting_count && (!max_running || running_count < max_running)) {
        Connection *first = NULL;
        for (int i = 0; i < highest; i++) {
            Connection *c = &connections[i];
            if (c->in_use && c->busy && c->waiting && (!first || c->read_at < first->read_at)) first = c;
        }
        if (!first) return;
        start_answer(first);
    }
}

static int event_text(Connection *c, char *text, size_t space, const char *json) {
    (void)c;
    const char *end = crlf ? "\r\n\r\n" : "\n\n";
    return snprintf(text, space, "data:%s%s%s", no_space ? "" : " ", json, end);
}

static void put_piece(Connection *c, const char *data, int length) {
    if (c->http10) { put(c, data, (size_t)length); return; }
    putf(c, "%x\r\n", length);
    put(c, data, (size_t)length);
    put(c, "\r\n", 2);
}

static int frame(Connection *c, char *text, size_t space, const char *word, long tokens, const char *finish) {
    char json[2048], usage[160] = "";
    long so_far = c->done + tokens;
    if (usage_mode == 2)
        snprintf(usage, sizeof usage, ",\"usage\":{\"prompt_tokens\":%ld,\"completion_tokens\":%ld,\"total_tokens\":%ld}",
                 c->prompt, so_far, c->prompt + so_far);
    char reason[40];
    if (finish) snprintf(reason, sizeof reason, "\"%s\"", finish); else strcpy(reason, "null");
    if (c->chat) {
        const char *field = c->done < reasoning ? "reasoning_content" : "content";
        if (!*word && finish)
            snprintf(json, sizeof json, "{\"id\":\"chatcmpl-%ld\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,"
                     "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":%s}]%s}",
                     c->number, model, reason, usage);
        else
            snprintf(json, sizeof json, "{\"id\":\"chatcmpl-%ld\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,"
                     "\"model\":\"%s\",\"choices\":[{\"index\":0,\"delta\":{\"%s\":\"%s\"},\"logprobs\":null,"
                     "\"finish_reason\":%s,\"token_ids\":null}]%s}", c->number, model, field, word, reason, usage);
    } else
        snprintf(json, sizeof json, "{\"id\":\"cmpl-%ld\",\"object\":\"text_completion\",\"created\":1764400000,\"model\":\"%s\","
                 "\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":%s,\"stop_reason\":null,"
                 "\"token_ids\":null}]%s}", c->number, model, word, reason, usage[0] ? usage : ",\"usage\":null");
    return event_text(c, text, space, json);
}

static void head(Connection *c) {
    c->headed = 1;
    putf(c, "HTTP/1.%d 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n%s\r\n", c->http10 ? 0 : 1,
         c->http10 ? "" : "transfer-encoding: chunked\r\n");
    char text[2048];
    int length;
    if (comments) put_piece(c, ": ping\n\n", 8);
    if (role_frame && c->chat) {
        char json[512];
        snprintf(json, sizeof json, "{\"id\":\"chatcmpl-%ld\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,\"model\":\"%s\","
                 "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}", c->number, model);
        length = event_text(c, text, sizeof text, json);
        put_piece(c, text, length);
    }
    flush_out(c);
}

static void finish_stream(Connection *c, char *text, int used, size_t space) {
    if (c->usage && usage_mode) {
        char json[512];
        snprintf(json, sizeof json, "{\"id\":\"%scmpl-%ld\",\"object\":\"%s\",\"created\":1764400000,\"model\":\"%s\",\"choices\":[],"
                 "\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":%ld,\"completion_tokens\":%ld}}", c->chat ? "chat" : "",
                 c->number, c->chat ? "chat.completion.chunk" : "text_completion", model, c->prompt, c->prompt + c->done, c->done);
        used += event_text(c, text + used, space - (size_t)used, json);
    }
    if (!no_done) used += event_text(c, text + used, space - (size_t)used, "[DONE]");
    if (used) put_piece(c, text, used);
    if (!c->http10) put(c, "0\r\n\r\n", 5);
}

static void count_tokens(Connection *c, int64_t at, long tokens) {
    if (!c->done) {
        double wait = (double)(at - c->read_at) / 1e9;
        ttft_sum += wait; ttft_count++;
        for (int b = 0; b < 12; b++) if (wait <= ttft_bounds[b]) ttft_buckets[b]++;
        prompt_total += (double)c->prompt;
        iterations_sum += (double)c->prompt;
        c->first_at = at;
    } else {
        double gap = (double)(at - c->last_at) / 1e9;
        itl_sum += gap; itl_count++;
        for (int b = 0; b < 14; b++) if (gap <= itl_bounds[b]) itl_buckets[b]++;
    }
    c->last_at = at;
    generation_total += (double)tokens;
    iterations_sum += (double)tokens;
    iterations_count += 1.0 / (running_count ? running_count : 1);
    flops_total += 2e9 * (double)tokens;
    read_bytes_total += 1e9 * (double)tokens / (running_count ? running_count : 1);
    write_bytes_total += 1e5 * (double)tokens;
}

/* Send what is due on one connection: one write of `pack` frames of `frame_tokens` tokens, `burst` writes in a row. */
static void emit(Connection *c) {
    if (c->hung) return;
    if (!c->headed) head(c);
    for (long again = 0; again < burst && c->busy && c->done < c->planned; again++) {
        static char text[1 << 20];
        int used = 0;
        long tokens_sent = 0, before = c->done;
        int64_t at = now_ns();
        if (c->fate == 1 && c->done >= error_after) {
            used = event_text(c, text, sizeof text, "{\"error\":{\"message\":\"the engine has stopped\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
            used += event_text(c, text + used, sizeof text - (size_t)used, "[DONE]");
            put_piece(c, text, used);
            if (!c->http10) put(c, "0\r\n\r\n", 5);
            flush_out(c);
            end_answer(c, 1);
            if (c->http10) c->closing = 1;
            return;
        }
        if (c->fate == 2 && c->done >= disconnect_after) { c->closing = 1; return; }
        if (c->fate == 5 && c->done >= hang_after) { c->hung = 1; return; }
        for (long piece = 0; piece < pack && c->done < c->planned; piece++) {
            long tokens = frame_tokens < c->planned - c->done ? frame_tokens : c->planned - c->done;
            if (!tokens_sent) count_tokens(c, at, tokens); else { generation_total += (double)tokens; iterations_sum += (double)tokens; }
            int last = c->done + tokens >= c->planned;
            const char *finish = last && !(empty_last) ? (c->fate == 3 ? "stop" : "length") : NULL;
            char word[512] = "";
            for (long t = 0; t < tokens && t < 60; t++) strcat(word, " word");
            used += frame(c, text + used, sizeof text - (size_t)used, word, tokens, finish);
            c->done += tokens;
            tokens_sent += tokens;
        }
        if (comments && c->done % 7 == 0) used += snprintf(text + used, sizeof text - (size_t)used, ": ping\n\n");
        put_piece(c, text, used);
        c->sent = grown(c->sent, &c->sent_space, c->sent_count + 1, sizeof(Sent));
        c->sent[c->sent_count++] = (Sent){now_ns(), tokens_sent};
        flush_out(c);
        if (c->done >= c->planned) {
            used = 0;
            if (empty_last) used = frame(c, text, sizeof text, "", 0, c->fate == 3 ? "stop" : "length");
            finish_stream(c, text, used, sizeof text);
            flush_out(c);
            end_answer(c, c->fate == 3 ? 3 : 0);
            if (c->http10 || (close_every && c->number % close_every == 0)) c->closing = 1;
            return;
        }
        int64_t step = 0;
        for (long index = before + 1; index <= c->done; index++) step += (int64_t)(gap_ms(c, index) * 1e6);
        c->due += step;
    }
}

static void reply(Connection *c, int status, const char *type, const char *body) {
    putf(c, "HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", status, status == 200 ? "OK" : "Error", type, strlen(body));
    put(c, body, strlen(body));
    flush_out(c);
}

static const char *value_of(const char *body, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *found = strstr(body, quoted);
    if (!found) return NULL;
    found += strlen(quoted);
    while (*found == ' ' || *found == ':') found++;
    return found;
}

static int truthy(const char *body, const char *key) {
    const char *value = value_of(body, key);
    return value && !strncmp(value, "true", 4);
}

static void metrics(Connection *c) {
    static char page[32768];
    int n = 0;
    double kv = 0;
    for (int i = 0; i < highest; i++)
        if (connections[i].in_use && connections[i].busy && !connections[i].waiting) kv += (double)(connections[i].prompt + connections[i].done);
#define LABELS "engine=\"0\",model_name=\"%s\""
#define GAUGE(name, help, value) n += snprintf(page + n, sizeof page - (size_t)n, "# HELP vllm:" name " " help "\n# TYPE vllm:" name " gauge\nvllm:" name "{" LABELS "} %.17g\n", model, (double)(value))
#define COUNTER(name, help, value) n += snprintf(page + n, sizeof page - (size_t)n, "# HELP vllm:" name " " help "\n# TYPE vllm:" name " counter\nvllm:" name "{" LABELS "} %.17g\n", model, (double)(value))
#define HISTOGRAM(name, sum, count) n += snprintf(page + n, sizeof page - (size_t)n, "# HELP vllm:" name " Histogram.\n# TYPE vllm:" name " histogram\nvllm:" name "_bucket{" LABELS ",le=\"+Inf\"} %.17g\nvllm:" name "_count{" LABELS "} %.17g\nvllm:" name "_sum{" LABELS "} %.17g\n", model, (double)(count), model, (double)(count), model, (double)(sum))
    GAUGE("num_requests_running", "Number of requests in model execution batches.", running_count);
    GAUGE("num_requests_waiting", "Number of requests waiting to be processed.", waiting_count);
    GAUGE("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kv / (double)kv_tokens);
    COUNTER("num_preemptions_total", "Cumulative number of preemption from the engine.", 0);
    COUNTER("prompt_tokens_total", "Number of prefill tokens processed.", prompt_total);
    COUNTER("generation_tokens_total", "Number of generation tokens processed.", generation_total);
    COUNTER("prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.", 0);
    COUNTER("prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.", 0);
    n += snprintf(page + n, sizeof page - (size_t)n, "# HELP vllm:request_success_total Count of successfully processed requests.\n# TYPE vllm:request_success_total counter\nvllm:request_success_total{" LABELS ",finished_reason=\"length\"} %.17g\nvllm:request_success_total{" LABELS ",finished_reason=\"stop\"} 0.0\n", model, success_total, model);
    HISTOGRAM("iteration_tokens_total", iterations_sum, (double)(long)(iterations_count + 0.5));
    n += snprintf(page + n, sizeof page - (size_t)n, "# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.\n# TYPE vllm:time_to_first_token_seconds histogram\n");
    for (int b = 0; b < 12; b++) {
        char bound[32];
        if (b == 11) strcpy(bound, "+Inf"); else snprintf(bound, sizeof bound, "%g", ttft_bounds[b]);
        n += snprintf(page + n, sizeof page - (size_t)n, "vllm:time_to_first_token_seconds_bucket{" LABELS ",le=\"%s\"} %.17g\n", model, bound, ttft_buckets[b]);
    }
    n += snprintf(page + n, sizeof page - (size_t)n, "vllm:time_to_first_token_seconds_count{" LABELS "} %.17g\nvllm:time_to_first_token_seconds_sum{" LABELS "} %.17g\n", model, ttft_count, model, ttft_sum);
    n += snprintf(page + n, sizeof page - (size_t)n, "# HELP vllm:inter_token_latency_seconds Histogram of inter-token latency in seconds.\n# TYPE vllm:inter_token_latency_seconds histogram\n");
    for (int b = 0; b < 14; b++) {
        char bound[32];
        if (b == 13) strcpy(bound, "+Inf"); else snprintf(bound, sizeof bound, "%g", itl_bounds[b]);
        n += snprintf(page + n, sizeof page - (size_t)n, "vllm:inter_token_latency_seconds_bucket{" LABELS ",le=\"%s\"} %.17g\n", model, bound, itl_buckets[b]);
    }
    n += snprintf(page + n, sizeof page - (size_t)n, "vllm:inter_token_latency_seconds_count{" LABELS "} %.17g\nvllm:inter_token_latency_seconds_sum{" LABELS "} %.17g\n", model, itl_count, model, itl_sum);
    HISTOGRAM("e2e_request_latency_seconds", e2e_sum, e2e_count);
    HISTOGRAM("request_queue_time_seconds", queue_sum, queue_count);
    HISTOGRAM("request_prefill_time_seconds", prefill_sum, prefill_count);
    HISTOGRAM("request_decode_time_seconds", decode_sum, decode_count);
    COUNTER("estimated_flops_per_gpu_total", "Estimated FLOPs per GPU.", flops_total);
    COUNTER("estimated_read_bytes_per_gpu_total", "Estimated bytes read per GPU.", read_bytes_total);
    COUNTER("estimated_write_bytes_per_gpu_total", "Estimated bytes written per GPU.", write_bytes_total);
    n += snprintf(page + n, sizeof page - (size_t)n, "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",enable_prefix_caching=\"False\",engine=\"0\",gpu_memory_utilization=\"0.9\",num_gpu_blocks=\"%ld\"} 1.0\n", kv_tokens / 16);
    reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", page);
}

static void generate(Connection *c, const char *body, int chat, int64_t read_at) {
    const char *prompt = value_of(body, chat ? "content" : "prompt"), *most = value_of(body, "max_tokens");
    if (!most) most = value_of(body, "max_completion_tokens");
    long count = 0;
    if (prompt && *prompt == '[') {
        if (no_token_ids) { reply(c, 400, "application/json", "{\"error\":{\"message\":\"prompt must be a string, not a list of token ids\",\"type\":\"BadRequestError\",\"param\":\"prompt\",\"code\":400}}"); return; }
        for (const char *p = prompt; *p && *p != ']'; p++) count += *p == ',';
        count++;
    } else if (prompt && *prompt == '"') {
        for (const char *p = prompt + 1; *p && *p != '"'; p++) count += *p == ' ';
        count++;
    }
    request_number++;
    c->number = request_number;
    c->asked = most ? atol(most) : 16;
    c->prompt = count;
    c->chat = chat;
    c->usage = truthy(body, "include_usage");
    c->done = 0; c->sent_count = 0; c->hung = c->fate = c->headed = 0;
    c->planned = c->asked;
    c->read_at = read_at;
    c->first_at = c->last_at = read_at;
    long n = request_number;
    if (max_context && count + c->asked > max_context) {
        char words[256];
        snprintf(words, sizeof words, "{\"error\":{\"message\":\"This model's maximum context length is %ld tokens. However, you requested %ld output tokens and your prompt contains %ld input tokens.\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}", max_context, c->asked, count);
        reply(c, 400, "application/json", words);
        return;
    }
    if (http_error_every && n % http_error_every == 0) {
        reply(c, (int)http_status, "application/json", "{\"error\":{\"message\":\"the server is overloaded\",\"type\":\"ServiceUnavailable\",\"param\":null,\"code\":503}}");
        log_truth(c, 4);
        return;
    }
    if (error_every && n % error_every == 0) c->fate = 1;
    else if (disconnect_every && n % disconnect_every == 0) c->fate = 2;
    else if (hang_every && n % hang_every == 0) c->fate = 5;
    else if (short_every && n % short_every == 0) { c->fate = 3; c->planned = short_after < c->asked ? short_after : c->asked; }
    c->busy = 1;
    if (max_running && running_count >= max_running) { c->waiting = 1; waiting_count++; c->due = INT64_MAX; }
    else start_answer(c);
}

/* Handle every whole request in the buffer. */
static void requests(Connection *c) {
    while (!c->busy && c->in_length) {
        char *end = memmem(c->in, c->in_length, "\r\n\r\n", 4);
        if (!end) return;
        size_t head_length = (size_t)(end - c->in) + 4, length = 0;
        for (char *line = c->in; line < end; line++) {
            if (!strncasecmp(line, "content-length:", 15)) length = (size_t)atol(line + 15);
            line = memchr(line, '\n', (size_t)(end - line));
            if (!line) break;
        }
        if (c->in_length < head_length + length) return;
        int64_t read_at = now_ns();
        char *body = c->in + head_length, kept = body[length];
        body[length] = 0;
        c->http10 = memmem(c->in, head_length, "HTTP/1.0\r\n", 10) != NULL;
        int loading = (double)(read_at - booted_at) < loading_ms * 1e6;
        if (!strncmp(c->in, "GET /health ", 12)) reply(c, loading ? 503 : 200, "application/json", loading ? "{\"error\":{\"message\":\"loading model\"}}" : "");
        else if (loading) reply(c, 503, "application/json", "{\"error\":{\"message\":\"Loading model\",\"type\":\"unavailable_error\",\"code\":503}}");
        else if (!strncmp(c->in, "GET /v1/models ", 15)) {
            char text[512];
            snprintf(text, sizeof text, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1764400000,\"owned_by\":\"vllm\",\"max_model_len\":%ld}]}", model, max_context ? max_context : 32768);
            reply(c, 200, "application/json", text);
        } else if (!strncmp(c->in, "GET /version ", 13)) reply(c, 200, "application/json", "{\"version\":\"0.0.0+fake\"}");
        else if (!strncmp(c->in, "GET /metrics ", 13)) metrics(c);
        else if (!strncmp(c->in, "GET /truth ", 11)) { if (truth) fflush(truth); reply(c, 200, "text/plain", "ok"); }
        else if (!strncmp(c->in, "POST /v1/completions ", 21)) generate(c, body, 0, read_at);
        else if (!strncmp(c->in, "POST /v1/chat/completions ", 26)) generate(c, body, 1, read_at);
        else reply(c, 404, "application/json", "{\"detail\":\"Not Found\"}");
        body[length] = kept;
        c->in_length -= head_length + length;
        memmove(c->in, body + length, c->in_length);
    }
}

static void readable(Connection *c) {
    for (;;) {
        c->in = grown(c->in, &c->in_space, c->in_length + 65537, 1);
        ssize_t got = recv(c->fd, c->in + c->in_length, 65536, 0);
        if (got < 0) {
            if (errno == EAGAIN || errno == EINTR) break;
            drop(c);
            return;
        }
        if (!got) { drop(c); return; }
        c->in_length += (size_t)got;
    }
    requests(c);
}

static void accept_all(int listener) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return;
        int on = 1, slot = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        while (slot < MAX_CONNECTIONS && connections[slot].in_use) slot++;
        if (slot == MAX_CONNECTIONS) { close(fd); continue; }
        Connection *c = &connections[slot];
        c->fd = fd; c->in_use = 1; c->closing = c->busy = c->waiting = c->hung = c->fate = 0;
        c->in_length = c->out_length = c->out_at = 0;
        if (slot >= highest) highest = slot + 1;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static void end_now(int signal_number) { (void)signal_number; ending = 1; }

int main(int argc, char **argv) {
    const char *log = NULL;
    long port = 0;
    struct { const char *name; long *value; } numbers[] = {
        {"port", &port}, {"stall_every", &stall_every}, {"pack", &pack}, {"frame_tokens", &frame_tokens}, {"burst", &burst},
        {"grid", &grid}, {"role_frame", &role_frame}, {"empty_last", &empty_last}, {"usage", &usage_mode}, {"comments", &comments},
        {"no_done", &no_done}, {"crlf", &crlf}, {"no_space", &no_space}, {"reasoning", &reasoning}, {"error_every", &error_every},
        {"error_after", &error_after}, {"http_error_every", &http_error_every}, {"http_status", &http_status},
        {"disconnect_every", &disconnect_every}, {"disconnect_after", &disconnect_after}, {"hang_every", &hang_every},
        {"hang_after", &hang_after}, {"short_every", &short_every}, {"short_after", &short_after}, {"close_every", &close_every},
        {"max_running", &max_running}, {"no_token_ids", &no_token_ids}, {"fragment", &fragment}, {"fifo", &fifo}, {"cpu", &cpu},
        {"kv_tokens", &kv_tokens}, {"max_context", &max_context}};
    struct { const char *name; double *value; } reals[] = {
        {"ttft_ms", &ttft_ms}, {"itl_ms", &itl_ms}, {"stall_ms", &stall_ms}, {"loading_ms", &loading_ms},
        {"prefill_ms_per_1k", &prefill_ms_per_1k}};
    struct { const char *name; const char **value; } texts[] = {{"log", &log}, {"model", &model}, {"startup_log", &startup_log}};
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        int known = 0;
        if (value) {
            size_t length = (size_t)(value - argv[i]);
            value++;
#define IS(entry) (strlen(entry) == length && !strncmp(argv[i], entry, length))
            for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) if (IS(numbers[k].name)) { *numbers[k].value = atol(value); known = 1; }
            for (size_t k = 0; k < sizeof reals / sizeof *reals; k++) if (IS(reals[k].name)) { *reals[k].value = atof(value); known = 1; }
            for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) if (IS(texts[k].name)) { *texts[k].value = value; known = 1; }
            if (IS("pattern")) {
                known = 1;
                for (char *part = strtok(value, ","); part && pattern_count < MAX_PATTERN; part = strtok(NULL, ",")) pattern[pattern_count++] = atof(part);
            }
        }
        if (!known) { fprintf(stderr, "unknown option %s\n", argv[i]); return 2; }
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct sigaction action = {.sa_handler = end_now};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (startup_log) {
        FILE *file = fopen(startup_log, "r");
        char line[4096];
        while (file && fgets(line, sizeof line, file)) fputs(line, stderr);
        if (file) fclose(file);
    }
    if (log && !(truth = fopen(log, "wb"))) { perror(log); return 1; }
    if (cpu >= 0) { cpu_set_t set; CPU_ZERO(&set); CPU_SET((int)cpu, &set); sched_setaffinity(0, sizeof set, &set); }
    if (fifo) { struct sched_param p = {.sched_priority = 10}; if (sched_setscheduler(0, SCHED_FIFO, &p)) fprintf(stderr, "no real-time priority: %s\n", strerror(errno)); }
    prctl(PR_SET_TIMERSLACK, 1000);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) { perror("bind"); return 1; }
    socklen_t size = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &size);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    static char timer_mark;
    event.data.ptr = &timer_mark;
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event);
    booted_at = now_ns();
    printf("listening on %d\n", ntohs(address.sin_port));
    fflush(stdout);
    int64_t armed = 0;
    while (!ending) {
        int64_t next = INT64_MAX, now = now_ns();
        for (int i = 0; i < highest; i++) {
            Connection *c = &connections[i];
            while (c->in_use && c->busy && !c->waiting && !c->hung && !c->closing && c->due <= now) emit(c);
            if (c->in_use && c->closing && !c->out_length) { drop(c); continue; }
            if (c->in_use && !c->busy && c->in_length) requests(c);
            if (c->in_use && c->busy && !c->waiting && !c->hung && c->due < next) next = c->due;
        }
        if (next <= now_ns()) next = 0;
        else if (next != INT64_MAX && next != armed) {
            struct itimerspec when = {.it_value = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
            armed = next;
        }
        struct epoll_event events[256];
        int count = epoll_wait(poller, events, 256, next == 0 ? 0 : 1000);
        for (int i = 0; i < count; i++) {
            if (!events[i].data.ptr) { accept_all(listener); continue; }
            if (events[i].data.ptr == &timer_mark) { uint64_t ticks; if (read(timer, &ticks, 8) < 0) continue; continue; }
            Connection *c = events[i].data.ptr;
            if (c->in_use && (events[i].events & EPOLLOUT)) flush_out(c);
            if (c->in_use && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) readable(c);
        }
    }
    for (int i = 0; i < highest; i++) if (connections[i].in_use) drop(&connections[i]);
    if (truth) fclose(truth);
    return 0;
}
