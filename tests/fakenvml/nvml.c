/* A stand-in for libnvidia-ml.so.1 that answers what a script says.
 *
 * The file named by FAKE_NVML holds one rule a line:
 *
 *     DEVICE KEY FROM VALUE
 *
 * DEVICE is a GPU's index, or - for the library itself. KEY is a key below, or * for every call on that device. The rule
 * applies from call number FROM (0 = the first) of that key on that device on; the last rule that applies wins, a rule
 * for * over one for a key. VALUE is text to the end of the line, or !N for "return error N". A number may grow:
 * 1000+50 is 1000 at call FROM, 1050 at the next one. Pairs and lists are separated by commas. No rule: not supported.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, DEVICES = 8, RULES = 256, KEYS = 32 };

typedef struct { int device; char key[32]; unsigned long from; char value[160]; } rule_t;
typedef struct { int index; unsigned long calls; char keys[KEYS][32]; unsigned long key_calls[KEYS]; } device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;

static rule_t rules[RULES];
static int rule_count;
static device_t devices[DEVICES + 1]; /* the last one is the library itself */

static void load(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], device[16];
    rule_count = 0;
    while (file && rule_count < RULES && fgets(line, sizeof line, file)) {
        rule_t *rule = &rules[rule_count];
        if (sscanf(line, "%15s %31s %lu %159[^\n]", device, rule->key, &rule->from, rule->value) == 4) {
            rule->device = device[0] == '-' ? DEVICES : atoi(device);
            rule_count++;
        }
    }
    if (file) fclose(file);
    for (int i = 0; i <= DEVICES; i++) {
        memset(&devices[i], 0, sizeof devices[i]);
        devices[i].index = i;
    }
}

/* Count the call, find the rule, and return its error; *value is the text otherwise, *since the calls since FROM. */
static int answer(device_t *device, const char *key, const char **value, unsigned long *since) {
    unsigned long all = device->calls++, own = 0;
    for (int i = 0; i < KEYS; i++) {
        if (device->keys[i][0] == 0) strcpy(device->keys[i], key);
        if (strcmp(device->keys[i], key) == 0) { own = device->key_calls[i]++; break; }
    }
    rule_t *found = NULL;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < rule_count; i++) {
            rule_t *rule = &rules[i];
            const char *wanted = pass ? "*" : key;
            unsigned long call = pass ? all : own;
            if (rule->device == device->index && strcmp(rule->key, wanted) == 0 && call >= rule->from) {
                found = rule;
                *since = call - rule->from;
            }
        }
    if (!found) return NOT_SUPPORTED;
    *value = found->value;
    return found->value[0] == '!' ? atoi(found->value + 1) : SUCCESS;
}

static int numbers(device_t *device, const char *key, unsigned long long *out, int count) {
    const char *text = NULL;
    unsigned long since = 0;
    int code = answer(device, key, &text, &since);
    for (int i = 0; code == SUCCESS && i < count; i++) {
        char *end;
        out[i] = strtoull(text, &end, 0);
        if (*end == '+') out[i] += since * strtoull(end + 1, &end, 0);
        text = *end == ',' ? end + 1 : end;
    }
    return code;
}

static int number(device_t *device, const char *key, unsigned *out) {
    unsigned long long value = 0;
    int code = numbers(device, key, &value, 1);
    *out = (unsigned)value;
    return code;
}

static int string(device_t *device, const char *key, char *out, unsigned length) {
    const char *text = NULL;
    unsigned long since = 0;
    int code = answer(device, key, &text, &since);
    if (code == SUCCESS) snprintf(out, length, "%s", text);
    return code;
}

static int processes(device_t *device, const char *key, unsigned *count, process_t *out) {
    const char *text = NULL;
    unsigned long since = 0;
    int code = answer(device, key, &text, &since);
    if (code != SUCCESS) return code;
    unsigned found = 0;
    for (char *end; *text; text = *end == ',' ? end + 1 : end) { /* pid:bytes,pid:bytes or - for none */
        unsigned pid = (unsigned)strtoul(text, &end, 10);
        if (end == text) break;
        unsigned long long used = *end == ':' ? strtoull(end + 1, &end, 10) : ~0ULL;
        if (out && found < *count) out[found] = (process_t){pid, used, ~0u, ~0u};
        found++;
    }
    code = found > (out ? *count : 0) ? TOO_SMALL : SUCCESS;
    *count = found;
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    unsigned ignored;
    (void)flags;
    load();
    int code = number(&devices[DEVICES], "init", &ignored);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}
int nvmlSystemGetDriverVersion(char *out, unsigned length) { return string(&devices[DEVICES], "driver", out, length); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return number(&devices[DEVICES], "cuda", (unsigned *)out); }
int nvmlDeviceGetCount_v2(unsigned *out) { return number(&devices[DEVICES], "count", out); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    unsigned ignored;
    if (index >= DEVICES) return INVALID;
    *out = &devices[index];
    int code = number(*out, "handle", &ignored);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}
int nvmlDeviceGetName(device_t *d, char *out, unsigned length) { return string(d, "name", out, length); }
int nvmlDeviceGetUUID(device_t *d, char *out, unsigned length) { return string(d, "uuid", out, length); }
int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *out) {
    unsigned long long value[2] = {0, 0}; /* total,used */
    int code = numbers(d, "memory", value, 2);
    if (code == SUCCESS) *out = (memory_t){value[0], value[0] - value[1], value[1]};
    return code;
}
int nvmlDeviceGetMigMode(device_t *d, unsigned *current, unsigned *pending) {
    int code = number(d, "mig", current);
    *pending = *current;
    return code;
}
int nvmlDeviceGetEnforcedPowerLimit(device_t *d, unsigned *out) { return number(d, "power_limit", out); }
int nvmlDeviceGetCudaComputeCapability(device_t *d, int *major, int *minor) {
    unsigned long long value[2] = {0, 0};
    int code = numbers(d, "capability", value, 2);
    *major = (int)value[0];
    *minor = (int)value[1];
    return code;
}
int nvmlDeviceGetMaxPcieLinkGeneration(device_t *d, unsigned *out) { return number(d, "pcie_generation", out); }
int nvmlDeviceGetMaxPcieLinkWidth(device_t *d, unsigned *out) { return number(d, "pcie_width", out); }
int nvmlDeviceGetMaxClockInfo(device_t *d, unsigned type, unsigned *out) {
    return number(d, type == 2 ? "memory_clock_max" : "sm_clock_max", out);
}
int nvmlDeviceGetClockInfo(device_t *d, unsigned type, unsigned *out) {
    return number(d, type == 2 ? "memory_clock" : "sm_clock", out);
}
int nvmlDeviceGetPowerUsage(device_t *d, unsigned *out) { return number(d, "power", out); }
int nvmlDeviceGetTotalEnergyConsumption(device_t *d, unsigned long long *out) { return numbers(d, "energy", out, 1); }
int nvmlDeviceGetTemperature(device_t *d, unsigned sensor, unsigned *out) {
    return sensor == 0 ? number(d, "temperature", out) : INVALID;
}
int nvmlDeviceGetUtilizationRates(device_t *d, rates_t *out) {
    unsigned long long value[2] = {0, 0};
    int code = numbers(d, "utilization", value, 2);
    *out = (rates_t){(unsigned)value[0], (unsigned)value[1]};
    return code;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(device_t *d, unsigned long long *out) { return numbers(d, "reasons", out, 1); }
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *n, process_t *out) { return processes(d, "compute", n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t *d, unsigned *n, process_t *out) { return processes(d, "graphics", n, out); }
#else
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t *d, unsigned long long *out) { return numbers(d, "reasons", out, 1); }
int nvmlDeviceGetComputeRunningProcesses_v2(device_t *d, unsigned *n, process_t *out) { return processes(d, "compute", n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(device_t *d, unsigned *n, process_t *out) { return processes(d, "graphics", n, out); }
#endif
