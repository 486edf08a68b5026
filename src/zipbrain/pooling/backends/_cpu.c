/* ZIPBrain's decisions and merge for float32 tensors on a CPU, one call before and one after the matching product.
 *
 * On a few hundred tokens, calling some eighty tensor operators costs several times their arithmetic. The plain
 * operators in steps.py and merges.py are the reference; the tests hold this file to them. Plain C, no dependency but
 * Python itself: tensors come as addresses with their sizes and strides, checked by the caller (cpu.py).
 *
 * Dot products keep sixteen partial sums in a fixed order, so equal rows give bit-equal scores wherever they stand.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define FAST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FAST
#endif

#define LANES 16
#define TINY 1e-18f /* above the root of the smallest normal number: no cosine can exceed 1 */
#define LOWEST (-((int64_t)1 << 62))

static float resolution; /* scores closer than this are equal: `set_resolution` takes it from pooling/steps.py */

FAST static float dot(const float *a, const float *b, int64_t n) {
    float part[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) part[l] += a[i + l] * b[i + l];
    float sum = 0;
    for (int l = 0; i + l < n; l++) part[l] += a[i + l] * b[i + l];
    for (int l = 0; l < LANES; l++) sum += part[l];
    return sum;
}

FAST static void add(float *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

FAST static void scale(float *to, const float *from, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i] * factor;
}

/* Mean of a token's vectors over heads that lie `step` apart. */
FAST static void mean_heads(float *to, const float *from, int64_t step, int64_t heads, int64_t n) {
    const float share = 1.0f / (float)heads;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float part[LANES];
        for (int l = 0; l < LANES; l++) part[l] = from[i + l];
        for (int64_t h = 1; h < heads; h++)
            for (int l = 0; l < LANES; l++) part[l] += from[h * step + i + l];
        for (int l = 0; l < LANES; l++) to[i + l] = part[l] * share;
    }
    for (; i < n; i++) {
        float sum = from[i];
        for (int64_t h = 1; h < heads; h++) sum += from[h * step + i];
        to[i] = sum * share;
    }
}

/* row = row * factor + offset, elementwise; returns its largest value, NaN if any value is NaN. */
FAST static float adjust(float *row, const float *factor, const float *offset, int64_t n) {
    float most[LANES], broken[LANES] = {0};
    for (int l = 0; l < LANES; l++) most[l] = -16;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const float value = row[i + l] * factor[i + l] + offset[i + l];
            row[i + l] = value;
            most[l] = value > most[l] ? value : most[l];
            broken[l] += value * 0;
        }
    for (int l = 0; i + l < n; l++) {
        const float value = row[i + l] * factor[i + l] + offset[i + l];
        row[i + l] = value;
        most[l] = value > most[l] ? value : most[l];
        broken[l] += value * 0;
    }
    for (int l = 1; l < LANES; l++) {
        most[0] = most[l] > most[0] ? most[l] : most[0];
        broken[0] += broken[l];
    }
    return most[0] + broken[0];
}

static float norm(const float *a, int64_t n) { return sqrtf(dot(a, a, n)); }

/* The k-th largest of n distinct keys; reorders them. */
static int64_t kth_largest(int64_t *key, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1, want = k - 1;
    while (low < high) {
        int64_t pivot = key[low + (high - low) / 2], i = low, j = high;
        while (i <= j) {
            while (key[i] > pivot) i++;
            while (key[j] < pivot) j--;
            if (i <= j) {
                int64_t swap = key[i];
                key[i++] = key[j];
                key[j--] = swap;
            }
        }
        if (want <= j) high = j;
        else if (want >= i) low = i;
        else break;
    }
    return key[want];
}

/* Mark the `count` highest scores: rounded to multiples of 2**-20 after the factor, ties to the lower index; what is
 * not finite comes first (broken 1) or last (-1). */
static void highest(const float *score, int64_t n, int64_t count, float factor, const uint8_t *closed, int64_t broken,
                    int64_t *key, int64_t *work, uint8_t *chosen) {
    const float steps = factor / resolution;
    for (int64_t i = 0; i < n; i++) {
        float value = rintf(score[i] * steps);
        int64_t whole = fabsf(value) <= 4194304.0f ? (int64_t)value : broken * ((int64_t)1 << 22);
        key[i] = closed && closed[i] ? LOWEST : whole * n - i;
    }
    memcpy(work, key, (size_t)n * sizeof *key);
    int64_t edge = kth_largest(work, n, count);
    for (int64_t i = 0; i < n; i++) chosen[i] = key[i] >= edge;
}

/* A tensor over tokens: address, strides in elements of batch, head and token; the last axis is contiguous. */
typedef struct {
    const float *data;
    int64_t batch, head, token, heads, width;
} View;

/* Vectors of one window in a space, and their lengths. Kinds: 0 as they are, 1 mean over heads, 2 per head. */
static int64_t space_width(const View *v, int kind) { return kind == 2 ? v->heads * v->width : v->width; }

static void read_space(const View *v, int kind, int64_t window, int64_t n, int unit, float *out, float *length) {
    const float *base = v->data + window * v->batch;
    const int64_t d = v->width, heads = v->heads;
    for (int64_t i = 0; i < n; i++) {
        const float *row = base + i * v->token;
        if (kind == 0) {
            length[i] = norm(row, d);
            if (out) scale(out + i * d, row, unit ? 1 / fmaxf(length[i], TINY) : 1, d);
        } else if (kind == 1) {
            float *to = out + i * d;
            mean_heads(to, row, v->head, heads, d);
            length[i] = norm(to, d);
            if (unit) scale(to, to, 1 / fmaxf(length[i], TINY), d);
        } else {
            const float share = 1 / sqrtf((float)heads); /* so that a dot product is the mean over heads */
            float sum = 0;
            for (int64_t h = 0; h < heads; h++) {
                float one = norm(row + h * v->head, d);
                sum += one;
                if (out) scale(out + (i * heads + h) * d, row + h * v->head, share / fmaxf(one, TINY), d);
            }
            length[i] = sum / (float)heads;
        }
    }
}

static int64_t number(PyObject *o) { return PyLong_AsLongLong(o); }

static View view_of(PyObject *const *a) {
    View v = {(const float *)(uintptr_t)PyLong_AsUnsignedLongLong(a[0]), number(a[1]), number(a[2]), number(a[3]),
              number(a[4]), number(a[5])};
    return v;
}

#define POINTER(type, o) ((type *)(uintptr_t)PyLong_AsUnsignedLongLong(o))

/* decide(view1 x6, kind1, view2 x6, kind2, view3 x6, kind3, same12, same13, same23, windows, n, r, pivots, leading,
 *        trailing, kept, source, redundant, unit3, rows3, lengths3)
 * Steps 1 and 2 and the vectors for step 3. unit3 is 0 for kind 0: then the caller multiplies with x itself, rows3 are
 * unit vectors, and `finish` divides by the columns' lengths, which are written to `lengths3`. */
static PyObject *decide(PyObject *self, PyObject *const *a, Py_ssize_t count) {
    if (count != 36) return PyErr_Format(PyExc_TypeError, "decide takes 36 numbers, not %zd", count);
    View v[3];
    int kind[3];
    for (int s = 0; s < 3; s++) {
        v[s] = view_of(a + 7 * s);
        kind[s] = (int)number(a[7 * s + 6]);
    }
    const int same12 = (int)number(a[21]), same13 = (int)number(a[22]), same23 = (int)number(a[23]);
    const int64_t windows = number(a[24]), n = number(a[25]), r = number(a[26]), pivots = number(a[27]),
                  leading = number(a[28]), trailing = number(a[29]);
    int64_t *kept = POINTER(int64_t, a[30]), *source = POINTER(int64_t, a[31]);
    uint8_t *redundant = POINTER(uint8_t, a[32]);
    float *unit3 = POINTER(float, a[33]), *rows3 = POINTER(float, a[34]), *lengths3 = POINTER(float, a[35]);
    if (PyErr_Occurred()) return NULL;

    const int64_t w1 = space_width(&v[0], kind[0]), w2 = space_width(&v[1], kind[1]), w3 = space_width(&v[2], kind[2]);
    float *vec1 = kind[0] == 1 ? malloc((size_t)(n * w1) * sizeof(float)) : NULL;
    float *vec2 = malloc((size_t)(n * w2) * sizeof(float));
    float *line = malloc((size_t)(2 * n + w2) * sizeof(float));
    int64_t *keys = malloc((size_t)(2 * n) * sizeof(int64_t));
    uint8_t *pivot = malloc((size_t)n);
    if (!vec2 || !line || !keys || !pivot || (kind[0] == 1 && !vec1)) {
        free(vec1), free(vec2), free(line), free(keys), free(pivot);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS;
    float *length = line, *score = line + n, *prototype = line + 2 * n;
    const int64_t total = leading + n + trailing;
    for (int64_t b = 0; b < windows; b++) {
        uint8_t *gone = redundant + b * n;
        float *u3 = unit3 ? unit3 + b * n * w3 : NULL, *l3 = lengths3 + b * n;
        /* step 1: the longest tokens are pivots */
        const int need2 = pivots < n - r;
        int ready2 = 0;
        if (same12 && need2) {
            read_space(&v[1], kind[1], b, n, 1, vec2, length);
            ready2 = 1;
        } else {
            read_space(&v[0], kind[0], b, n, 0, vec1, length);
        }
        float top = 0;
        for (int64_t i = 0; i < n; i++)
            if (length[i] > top && length[i] < INFINITY) top = length[i];
        highest(length, n, pivots, 1 / fmaxf(top, 1.17549435e-38f), NULL, 1, keys, keys + n, pivot);
        /* step 2: the r tokens closest to the mean pivot are redundant */
        if (!need2) {
            for (int64_t i = 0; i < n; i++) gone[i] = !pivot[i];
        } else {
            if (!ready2) read_space(&v[1], kind[1], b, n, 1, vec2, score);
            memset(prototype, 0, (size_t)w2 * sizeof(float));
            for (int64_t i = 0; i < n; i++)
                if (pivot[i]) add(prototype, vec2 + i * w2, w2);
            for (int64_t i = 0; i < n; i++) score[i] = dot(vec2 + i * w2, prototype, w2);
            highest(score, n, r, 1 / (float)pivots, pivot, -1, keys, keys + n, gone);
        }
        int64_t *stay = kept + b * (total - r), *leave = source + b * r;
        for (int64_t i = 0; i < leading; i++) *stay++ = i;
        for (int64_t i = 0; i < n; i++) {
            if (gone[i]) *leave++ = leading + i;
            else *stay++ = leading + i;
        }
        for (int64_t i = 0; i < trailing; i++) *stay++ = leading + n + i;
        /* vectors for step 3 */
        leave = source + b * r;
        float *rows = rows3 + b * r * w3;
        if (!u3) { /* x itself: unit rows for the sources, lengths for the columns */
            const View *x = &v[2];
            if (same13) memcpy(l3, length, (size_t)n * sizeof(float));
            else read_space(x, 0, b, n, 0, NULL, l3);
            for (int64_t i = 0; i < r; i++) {
                const int64_t t = leave[i] - leading;
                scale(rows + i * w3, x->data + b * x->batch + t * x->token, 1 / fmaxf(l3[t], TINY), w3);
            }
        } else {
            if (same23 && need2) memcpy(u3, vec2, (size_t)(n * w3) * sizeof(float));
            else read_space(&v[2], kind[2], b, n, 1, u3, l3);
            for (int64_t i = 0; i < r; i++)
                memcpy(rows + i * w3, u3 + (leave[i] - leading) * w3, (size_t)w3 * sizeof(float));
        }
    }
    Py_END_ALLOW_THREADS;
    free(vec1), free(vec2), free(line), free(keys), free(pivot);
    Py_RETURN_NONE;
}

/* finish(cosine, lengths3 or 0, redundant, x, x_batch, x_token, width, windows, n, r, leading, total, kept, source,
 *        target, out or 0, vanished): step 3's choice and step 4. */
static PyObject *finish(PyObject *self, PyObject *const *a, Py_ssize_t count) {
    if (count != 17) return PyErr_Format(PyExc_TypeError, "finish takes 17 numbers, not %zd", count);
    float *cosine = POINTER(float, a[0]), *lengths3 = POINTER(float, a[1]);
    const uint8_t *redundant = POINTER(uint8_t, a[2]);
    const float *x = POINTER(float, a[3]);
    const int64_t x_batch = number(a[4]), x_token = number(a[5]), width = number(a[6]), windows = number(a[7]),
                  n = number(a[8]), r = number(a[9]), leading = number(a[10]), total = number(a[11]);
    const int64_t *kept = POINTER(int64_t, a[12]), *source = POINTER(int64_t, a[13]);
    int64_t *target = POINTER(int64_t, a[14]);
    float *out = POINTER(float, a[15]);
    const float vanished = (float)PyFloat_AsDouble(a[16]);
    if (PyErr_Occurred()) return NULL;
    int64_t *place = malloc((size_t)total * sizeof(int64_t));
    float *length = malloc((size_t)(total + 2 * n) * sizeof(float));
    if (!place || !length) {
        free(place), free(length);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS;
    float *inverse = length + total, *offset = inverse + n;
    for (int64_t b = 0; b < windows; b++) {
        const uint8_t *gone = redundant + b * n;
        const int64_t *stay = kept + b * (total - r), *leave = source + b * r;
        int64_t *join = target + b * r;
        int64_t first = 0;
        while (first < n - 1 && gone[first]) first++;
        for (int64_t j = 0; j < n; j++) {
            inverse[j] = gone[j] ? 0 : lengths3 ? 1 / fmaxf(lengths3[b * n + j], TINY) : 1;
            offset[j] = gone[j] ? -8 : 0;
        }
        for (int64_t i = 0; i < r; i++) {
            float *row = cosine + (b * r + i) * n;
            const float edge = adjust(row, inverse, offset, n) - resolution;
            int64_t j = first; /* with NaN in the row: the first token that stays */
            if (edge == edge)
                for (j = 0; j < n - 1 && row[j] < edge; j++) {
                }
            if (gone[j]) j = first;
            join[i] = leading + j;
        }
        if (!out) continue;
        /* step 4: sum every group into its kept row, then give it its longest member's length */
        const float *window = x + b * x_batch;
        float *rows = out + b * (total - r) * width;
        for (int64_t i = 0, run; i < total - r; i += run) { /* kept tokens in runs of neighbours */
            for (run = 0; i + run < total - r && stay[i + run] == stay[i] + run; run++) place[stay[i + run]] = i + run;
            if (x_token == width) memcpy(rows + i * width, window + stay[i] * width, (size_t)(run * width) * sizeof(float));
            else
                for (int64_t j = 0; j < run; j++)
                    memcpy(rows + (i + j) * width, window + (stay[i] + j) * x_token, (size_t)width * sizeof(float));
        }
        for (int64_t i = 0; i < total; i++) length[i] = -1;
        for (int64_t i = 0; i < r; i++) {
            const int64_t t = join[i];
            const float *from = window + leave[i] * x_token;
            if (length[t] == -1) length[t] = norm(window + t * x_token, width);
            const float own = norm(from, width);
            if (!(own <= length[t])) length[t] = own;
            add(rows + place[t] * width, from, width);
        }
        for (int64_t i = 0; i < r; i++) {
            const int64_t t = join[i];
            if (length[t] == -1) continue; /* done with an earlier source of the group */
            float *row = rows + place[t] * width;
            float found = norm(row, width);
            if (found * vanished < length[t]) {
                memcpy(row, window + t * x_token, (size_t)width * sizeof(float));
                found = norm(row, width);
            }
            scale(row, row, length[t] / fmaxf(found, 1.17549435e-38f), width);
            length[t] = -1;
        }
    }
    Py_END_ALLOW_THREADS;
    free(place), free(length);
    Py_RETURN_NONE;
}

static PyObject *set_resolution(PyObject *self, PyObject *value) {
    resolution = (float)PyFloat_AsDouble(value);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_resolution", set_resolution, METH_O, "Set what scores must differ by."},
    {"decide", (PyCFunction)(void (*)(void))decide, METH_FASTCALL, "Steps 1 and 2, and the vectors for step 3."},
    {"finish", (PyCFunction)(void (*)(void))finish, METH_FASTCALL, "The choice of step 3, and step 4."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_cpu", "ZIPBrain on float32 CPU tensors.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__cpu(void) { return PyModule_Create(&module); }
