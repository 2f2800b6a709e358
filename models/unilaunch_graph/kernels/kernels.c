/* What one thread computes on rows of float32: dense and sparse products, scaling, ReLU, dropout and rounding.
 *
 * All matrices are in row-major order. Each result has the same bits in every run: sums have a fixed order.
 * The vectors are GCC's and Clang's vector extension; its compiler chooses the processor's instructions.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* LANES: numbers in one vector register. ROWS: rows of a tile, as many as the registers hold with two vectors each. */
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12
#elif defined(__AVX__)
#define LANES 8
#define ROWS 6
#else
#define LANES 4
#define ROWS 6
#endif
#define PANEL (2 * LANES)
#define DEPTH 320       /* rows of B that are packed at a time: its panel stays in the first cache */
#define ROW_BLOCK 120   /* rows of A that are multiplied by one panel after the other: they stay in the second cache */
#define AHEAD 8192      /* bytes of gathered rows that are fetched ahead: a sixth of the first cache */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Quad __attribute__((vector_size(16)));
typedef float Single __attribute__((vector_size(4)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint32_t QuadWords __attribute__((vector_size(16)));

/* ---- what becomes of rows while they are in the cache ---- */

/* Each row times its factor, then ReLU, then *scale* times it, or 0 where *where* is 0 or less. NULL and 0 leave a step
 * out. What is not a number passes, so that it is noticed. */
void end_rows(float *restrict rows, int64_t count, int64_t width, const float *factors, int relu,
              const float *restrict where, float scale) {
    for (int64_t i = 0; i < count; i++, rows += width) {
        if (factors)
            for (int64_t j = 0; j < width; j++) rows[j] *= factors[i];
        if (relu)
            for (int64_t j = 0; j < width; j++) rows[j] = rows[j] <= 0 ? 0.0f : rows[j];
        if (where)
            for (int64_t j = 0; j < width; j++) rows[j] = where[i * width + j] <= 0 ? 0.0f : scale * rows[j];
    }
}

/* ---- dense product ---- */

typedef struct {
    const float *a;        /* A, from the tile's first row and column on */
    int64_t row, column;   /* steps in A */
    const float *panel;    /* B: depth rows of PANEL numbers */
    float *c;              /* C, from the tile's first row and column on */
    int64_t width;         /* columns of C */
    int64_t depth, columns;
    int add;               /* whether to add to C */
    const char *next;      /* what is read soon: *step* bytes of it are fetched at each of the *depth* steps */
    int64_t step;
} Tile;

/* C = A B, or C += A B, for a tile of *rows* x (*vectors* x LANES); both are constants where this is inlined. */
INLINE void multiply_tile(const Tile *t, const int rows, const int vectors) {
    Vector sums[ROWS][2];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) sums[i][j] = (Vector){0};
    const float *a = t->a, *b = t->panel;
    const char *next = t->next;
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) __builtin_prefetch(t->c + i * t->width + j * LANES, 1);
    for (int64_t k = 0; k < t->depth; k++, a += t->column, b += PANEL, next += t->step) {
        __builtin_prefetch(next, 0, 2);
        Vector right[2];
        UNROLL for (int j = 0; j < vectors; j++) memcpy(&right[j], b + j * LANES, sizeof(Vector));
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < vectors; j++) sums[i][j] += a[i * t->row] * right[j];
    }
    UNROLL for (int i = 0; i < rows; i++) {
        float *out = t->c + i * t->width, line[PANEL];
        UNROLL for (int j = 0; j < vectors; j++) memcpy(line + j * LANES, &sums[i][j], sizeof(Vector));
        for (int64_t j = 0; j < t->columns; j++) out[j] = t->add ? out[j] + line[j] : line[j];
    }
}

#define ONE_TILE(N) static void tile_##N(const Tile *t) { \
    if (t->columns > LANES) multiply_tile(t, N, 2); else multiply_tile(t, N, 1); }
ONE_TILE(1)
ONE_TILE(2)
ONE_TILE(4)
#if ROWS > 8
ONE_TILE(8)
#endif
#define FULL_TILE(N) ONE_TILE(N)
FULL_TILE(ROWS)
#define CALL_FULL(N) tile_##N
#define FULL(N) CALL_FULL(N)

/* Multiply *rows* rows of A by one panel; the tile is then behind them. */
static void multiply_rows(Tile *t, int64_t rows) {
    static const struct { int64_t rows; void (*multiply)(const Tile *); } kinds[] = {
        {ROWS, FULL(ROWS)},
#if ROWS > 8
        {8, tile_8},
#endif
        {4, tile_4}, {2, tile_2}, {1, tile_1}};
    for (int kind = 0; rows; kind++)
        for (; rows >= kinds[kind].rows; rows -= kinds[kind].rows) {
            kinds[kind].multiply(t);
            t->a += kinds[kind].rows * t->row;
            t->c += kinds[kind].rows * t->width;
            t->next += t->depth * t->step;
        }
}

int64_t packed_size(int64_t width) { return DEPTH * ((width + PANEL - 1) / PANEL * PANEL + ROW_BLOCK); }

/* C = A B, then end_rows.
 * A: (rows, depth) with steps between its rows and columns, B: (depth, width) likewise, C: (rows, width).
 * *packed* has room for packed_size(width) numbers: B's panels, and behind them a block of a transposed A, whose columns
 * would otherwise be read from a page of memory each. */
void multiply(const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row, int64_t b_column,
              float *c, int64_t rows, int64_t depth, int64_t width, float *packed, const float *factors, int relu,
              const float *where, float scale) {
    for (int64_t first = 0; first < depth; first += DEPTH) {
        const int64_t deep = depth - first < DEPTH ? depth - first : DEPTH;
        for (int64_t begin = 0; begin < width; begin += PANEL) {
            const int64_t columns = width - begin < PANEL ? width - begin : PANEL;
            float *line = packed + begin * deep;
            for (int64_t k = 0; k < deep; k++, line += PANEL) {
                const float *from = b + (first + k) * b_row + begin * b_column;
                if (b_column == 1 && columns == PANEL) memcpy(line, from, 4 * PANEL);
                else for (int64_t j = 0; j < PANEL; j++) line[j] = j < columns ? from[j * b_column] : 0.0f;
            }
        }
        for (int64_t top = 0; top < rows; top += ROW_BLOCK) {
            const int64_t block = rows - top < ROW_BLOCK ? rows - top : ROW_BLOCK;
            const float *left = a + top * a_row + first * a_column;
            int64_t column = a_column;
            /* Soon: of A the next block, or of a transposed A as large a piece of its next *deep* rows. */
            const char *next = (const char *)(a_row == 1 ? a + (first + deep) * a_column + top * deep : left + block * a_row);
            const int64_t tiles = (block + ROWS - 1) / ROWS * ((width + PANEL - 1) / PANEL);
            const int64_t step = 4 * block * (a_row == 1 ? deep : a_row) / (tiles * deep) + 1;
            if (a_row == 1 && a_column > ROW_BLOCK) {
                float *copied = packed + packed_size(width) - DEPTH * ROW_BLOCK;
                for (int64_t k = 0; k < deep; k++) memcpy(copied + k * ROW_BLOCK, left + k * a_column, 4 * block);
                left = copied, column = ROW_BLOCK;
            }
            for (int64_t begin = 0; begin < width; begin += PANEL) {
                const int64_t columns = width - begin < PANEL ? width - begin : PANEL;
                Tile tile = {left, a_row, column, packed + begin * deep, c + top * width + begin, width, deep,
                             columns, first > 0, next, step};
                multiply_rows(&tile, block);
                next = tile.next;
            }
            if (first + deep == depth)
                end_rows(c + top * width, block, width, factors ? factors + top : NULL, relu,
                         where ? where + top * width : NULL, scale);
        }
    }
}

/* ---- sparse product ---- */

typedef struct {
    const int32_t *indices;
    const float *values;   /* NULL: each is 1 */
    int64_t end;           /* no entry from here on may be read */
    const float *rows;
    int64_t width;         /* columns of the rows and of the result */
    int64_t ahead;         /* entries that are fetched ahead */
} Entries;

/* Define NAME: the sums of *count* rows for *columns* columns: *vectors* vectors of LENGTH numbers, of which the last may
 * overlap the one before it. *vectors*, *weighted* and *add* are constants where it is inlined. */
#define SUM_ROWS(NAME, TYPE, LENGTH) \
INLINE void NAME(const Entries *e, const int64_t *indptr, int64_t count, const int64_t columns, float *out, \
                 const int vectors, const int weighted, const int add) { \
    for (int64_t i = 0; i < count; i++, out += e->width) { \
        TYPE sums[8]; \
        int64_t offsets[8]; \
        UNROLL for (int j = 0; j < vectors; j++) { \
            offsets[j] = j < vectors - 1 ? j * LENGTH : columns - LENGTH; \
            if (add) memcpy(&sums[j], out + offsets[j], sizeof(TYPE)); \
            else sums[j] = (TYPE){0}; \
        } \
        for (int64_t k = indptr[i]; k < indptr[i + 1]; k++) { \
            const float *next = e->rows + e->indices[k + e->ahead < e->end ? k + e->ahead : k] * e->width; \
            UNROLL for (int number = 0; number < vectors * LENGTH; number += 16) __builtin_prefetch(next + number); \
            const float *row = e->rows + e->indices[k] * e->width; \
            UNROLL for (int j = 0; j < vectors; j++) { \
                TYPE numbers; \
                memcpy(&numbers, row + offsets[j], sizeof(TYPE)); \
                sums[j] += weighted ? e->values[k] * numbers : numbers; \
            } \
        } \
        UNROLL for (int j = 0; j < vectors; j++) memcpy(out + offsets[j], &sums[j], sizeof(TYPE)); \
    } \
}
SUM_ROWS(sum_wide, Vector, LANES)
SUM_ROWS(sum_narrow, Quad, 4)
SUM_ROWS(sum_single, Single, 1)

/* out = S rows, or out += S rows, for *count* rows of a CSR matrix S. *values* is NULL where each entry is 1. */
void aggregate(const int64_t *indptr, const int32_t *indices, const float *values, int64_t count,
               const float *rows, int64_t width, float *out, int add) {
    const int64_t pieces = (width + 8 * LANES - 1) / (8 * LANES);
    const int64_t even = pieces > 1 ? ((width + pieces - 1) / pieces + LANES - 1) / LANES * LANES : width;
    for (int64_t column = 0; column < width; column += even) {
        const int64_t columns = width - column < even ? width - column : even;
        const Entries entries = {indices, values, indptr[count], rows + column, width, AHEAD / (4 * columns)};
#define SUM(NAME, N) \
    if (values) { if (add) NAME(&entries, indptr, count, columns, out + column, N, 1, 1); \
                  else NAME(&entries, indptr, count, columns, out + column, N, 1, 0); } \
    else if (add) NAME(&entries, indptr, count, columns, out + column, N, 0, 1); \
    else NAME(&entries, indptr, count, columns, out + column, N, 0, 0)
#define CASE(NAME, N) case N: SUM(NAME, N); break
        if (columns >= LANES)
            switch ((columns + LANES - 1) / LANES) {
                CASE(sum_wide, 1); CASE(sum_wide, 2); CASE(sum_wide, 3); CASE(sum_wide, 4);
                CASE(sum_wide, 5); CASE(sum_wide, 6); CASE(sum_wide, 7); CASE(sum_wide, 8);
            }
        else if (columns >= 4)
            switch ((columns + 3) / 4) { CASE(sum_narrow, 1); CASE(sum_narrow, 2); CASE(sum_narrow, 3); CASE(sum_narrow, 4); }
        else
            switch (columns) { CASE(sum_single, 1); CASE(sum_single, 2); CASE(sum_single, 3); }
    }
}

/* ---- sparse product of rows in bfloat16: the upper halves of float32's words ---- */

/* As SUM_ROWS; a word of two numbers is made two vectors, of the even and of the odd columns. */
#define SUM_ROUNDED(NAME, NUMBERS, WORDS, LENGTH) \
INLINE void NAME(const int64_t *indptr, const int32_t *indices, const float *values, int64_t count, \
                 const uint16_t *rows, int64_t width, int64_t columns, float *out, int add, const int vectors) { \
    const int64_t ahead = AHEAD / (2 * columns); \
    for (int64_t i = 0; i < count; i++, out += width) { \
        NUMBERS even[4], odd[4]; \
        int64_t offsets[4]; \
        UNROLL for (int j = 0; j < vectors; j++) { \
            offsets[j] = j < vectors - 1 ? j * LENGTH : columns - LENGTH; \
            even[j] = odd[j] = (NUMBERS){0}; \
        } \
        for (int64_t k = indptr[i]; k < indptr[i + 1]; k++) { \
            const uint16_t *next = rows + indices[k + ahead < indptr[count] ? k + ahead : k] * width; \
            UNROLL for (int number = 0; number < vectors * LENGTH; number += 32) __builtin_prefetch(next + number); \
            const uint16_t *row = rows + indices[k] * width; \
            const float value = values ? values[k] : 1.0f; \
            UNROLL for (int j = 0; j < vectors; j++) { \
                WORDS words; \
                memcpy(&words, row + offsets[j], sizeof(WORDS)); \
                even[j] += value * (NUMBERS)(words << 16); \
                odd[j] += value * (NUMBERS)(words & 0xFFFF0000u); \
            } \
        } \
        float sums[8 * LANES]; \
        UNROLL for (int j = 0; j < vectors; j++) \
            for (int number = 0; number < LENGTH / 2; number++) { \
                sums[offsets[j] + 2 * number] = even[j][number]; \
                sums[offsets[j] + 2 * number + 1] = odd[j][number]; \
            } \
        for (int64_t j = 0; j < columns; j++) out[j] = add ? out[j] + sums[j] : sums[j]; \
    } \
}
SUM_ROUNDED(sum_rounded, Vector, Words, 2 * LANES)
SUM_ROUNDED(sum_few_rounded, Quad, QuadWords, 8)

static float widen(uint16_t half) {
    const uint32_t word = (uint32_t)half << 16;
    float number;
    memcpy(&number, &word, 4);
    return number;
}

/* As aggregate. */
void aggregate_rounded(const int64_t *indptr, const int32_t *indices, const float *values, int64_t count,
                       const uint16_t *rows, int64_t width, float *out, int add) {
    const int64_t pieces = (width + 8 * LANES - 1) / (8 * LANES);
    const int64_t even = pieces > 1 ? ((width + pieces - 1) / pieces + 2 * LANES - 1) / (2 * LANES) * 2 * LANES : width;
    for (int64_t column = 0; column < width; column += even) {
        const int64_t columns = width - column < even ? width - column : even;
#define ROUNDED(NAME, N) \
    case N: NAME(indptr, indices, values, count, rows + column, width, columns, out + column, add, N); break
        if (columns >= 2 * LANES)
            switch ((columns + 2 * LANES - 1) / (2 * LANES)) {
                ROUNDED(sum_rounded, 1); ROUNDED(sum_rounded, 2); ROUNDED(sum_rounded, 3); ROUNDED(sum_rounded, 4);
            }
        else if (columns >= 8)
            switch ((columns + 7) / 8) {
                ROUNDED(sum_few_rounded, 1); ROUNDED(sum_few_rounded, 2);
                ROUNDED(sum_few_rounded, 3); ROUNDED(sum_few_rounded, 4);
            }
        else
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = column; j < width; j++) {
                    float sum = add ? out[i * width + j] : 0.0f;
                    for (int64_t k = indptr[i]; k < indptr[i + 1]; k++)
                        sum += (values ? values[k] : 1.0f) * widen(rows[indices[k] * width + j]);
                    out[i * width + j] = sum;
                }
    }
}

/* out = factors * rows, rounded to bfloat16: to the nearest, ties to even; for finite numbers, as to_bfloat16.
 * *factors* has one number a row; NULL: ones. */
void round_rows(const float *restrict rows, const float *restrict factors, uint16_t *restrict out, int64_t count,
                int64_t width) {
    for (int64_t i = 0; i < count; i++, rows += width, out += width) {
        const float factor = factors ? factors[i] : 1.0f;
        for (int64_t j = 0; j < width; j++) {
            const float number = factor * rows[j];
            uint32_t word;
            memcpy(&word, &number, 4);
            out[j] = (word + 0x7FFFu + ((word >> 16) & 1)) >> 16;
        }
    }
}

/* ---- passes over rows ---- */

/* out = factors * rows; *factors* has one number a row. */
void scale_rows(const float *restrict rows, const float *restrict factors, float *restrict out, int64_t count,
                int64_t width) {
    for (int64_t i = 0; i < count; i++, rows += width, out += width)
        for (int64_t j = 0; j < width; j++) out[j] = factors[i] * rows[j];
}

/* out = left (out + loops own), then ReLU: *left* and *loops* have one number a row; NULL: ones. The own rows are *own*,
 * or in bfloat16 *words*; both NULL: no loops. */
void finish(float *restrict out, int64_t count, int64_t width, const float *restrict own,
            const uint16_t *restrict words, const float *loops, const float *left, int relu) {
    const float most = relu ? 0.0f : NAN; /* what is no more than this becomes 0; nothing is less than NaN */
    for (int64_t i = 0; i < count; i++, out += width) {
        const float factor = left ? left[i] : 1.0f, loop = loops ? loops[i] : 1.0f;
        for (int64_t j = 0; j < width; j++) {
            const float own_number = own ? own[i * width + j] : words ? widen(words[i * width + j]) : 0.0f;
            const float number = factor * (out[j] + loop * own_number);
            out[j] = number <= most ? 0.0f : number;
        }
    }
}

/* The mixing function "lowbias32", as dropout.mix. */
INLINE uint32_t mix(uint32_t word) {
    word = (word ^ (word >> 16)) * 0x7FEB352Du;
    word = (word ^ (word >> 15)) * 0x846CA68Bu;
    return word ^ (word >> 16);
}

/* out = mask * rows, or mask * max(0, rows); the mask is *scale* where an element's word is at least *least*, else 0. */
void drop_out(const float *restrict rows, float *restrict out, int64_t count, int64_t width, const uint32_t *row_words,
              const uint32_t *restrict column_words, uint32_t least, float scale, int relu) {
    for (int64_t i = 0; i < count; i++, rows += width, out += width) {
        const uint32_t word = row_words[i];
        if (relu)
            for (int64_t j = 0; j < width; j++)
                out[j] = (mix(word ^ column_words[j]) >= least ? scale : 0.0f) * (rows[j] < 0 ? 0.0f : rows[j]);
        else
            for (int64_t j = 0; j < width; j++)
                out[j] = (mix(word ^ column_words[j]) >= least ? scale : 0.0f) * rows[j];
    }
}

/* out = 0 where *rows* is 0 or less, else scale * gradient: what is not a number passes, so that it is noticed. */
void pass_positive(const float *restrict rows, const float *restrict gradient, float *restrict out, int64_t size,
                   float scale) {
    for (int64_t i = 0; i < size; i++) out[i] = rows[i] <= 0 ? 0.0f : scale * gradient[i];
}
