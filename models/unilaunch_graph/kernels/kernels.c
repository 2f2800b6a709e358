/* What one thread computes on rows of float32: dense and sparse products, scaling, ReLU, dropout and rounding.
 *
 * All matrices are in row-major order. Each result has the same bits in every run: sums have a fixed order.
 * The vectors are GCC's and Clang's vector extension; its compiler chooses the processor's instructions.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AMX_BF16__) || defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

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
#define SUMS 16         /* vectors that hold the sums of a row: as many as there are registers, or half of them */
#define DEPTH 320       /* rows of B that are packed at a time: they stay in a cache */
#define ROW_BLOCK 120   /* rows of A that are multiplied by one panel after the other: they stay in the second cache */
#define AHEAD 8192      /* bytes of gathered rows that are fetched ahead: a sixth of the first cache */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Quad __attribute__((vector_size(16)));
typedef float Single __attribute__((vector_size(4)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint32_t QuadWords __attribute__((vector_size(16)));

/* A dropout mask: *scale* where the mixed word of a row's and a column's is *least* or more, else 0. No rows: no mask. */
typedef struct {
    const uint32_t *rows, *columns;
    uint32_t least;
    float scale;
} Mask;

/* The mixing function "lowbias32", as dropout.mix. */
INLINE uint32_t mix(uint32_t word) {
    word = (word ^ (word >> 16)) * 0x7FEB352Du;
    word = (word ^ (word >> 15)) * 0x846CA68Bu;
    return word ^ (word >> 16);
}

/* out = mask * rows, for a line of *count* numbers: *word* is the mask's word of the line, *words* are those of its numbers. */
INLINE void drop_line(const float *rows, float *out, int64_t count, uint32_t word, const uint32_t *words, uint32_t least,
                      float scale) {
    for (int64_t j = 0; j < count; j++) out[j] = (mix(word ^ words[j]) >= least ? scale : 0.0f) * rows[j];
}

/* ---- what becomes of rows while they are in the cache ---- */

/* *scale* times each number, or 0 where *where* is 0 or less; then each row times its factor, then ReLU. NULL and 0 leave
 * a step out. What is not a number passes, so that it is noticed. */
void end_rows(float *restrict rows, int64_t count, int64_t width, const float *factors, int relu,
              const float *restrict where, float scale) {
    for (int64_t i = 0; i < count; i++, rows += width) {
        if (where)
            for (int64_t j = 0; j < width; j++) rows[j] = where[i * width + j] <= 0 ? 0.0f : scale * rows[j];
        if (factors)
            for (int64_t j = 0; j < width; j++) rows[j] *= factors[i];
        if (relu)
            for (int64_t j = 0; j < width; j++) rows[j] = rows[j] <= 0 ? 0.0f : rows[j];
    }
}

/* Return the bits of the nearest bfloat16 number as a float32 number, in the upper half of the word; ties to even. For finite
 * numbers, as to_bfloat16. */
INLINE uint32_t nearest(float number) {
    uint32_t word;
    memcpy(&word, &number, 4);
    return (word + 0x7FFFu + ((word >> 16) & 1)) & 0xFFFF0000u;
}

/* out = factors * rows, rounded to bfloat16's words. *factors* has one number a row; NULL: ones. */
void round_rows(const float *restrict rows, const float *restrict factors, uint16_t *restrict out, int64_t count,
                int64_t width) {
    for (int64_t i = 0; i < count; i++, rows += width, out += width) {
        const float factor = factors ? factors[i] : 1.0f;
        for (int64_t j = 0; j < width; j++) out[j] = nearest(factor * rows[j]) >> 16;
    }
}

/* ---- dense product ---- */

/* Return sums + left right. Where the processor adds products of bfloat16 numbers two at a time, *are_pairs* says that each
 * word is such a pair. */
#ifdef __AVX512BF16__
#define HAS_PAIRS 1
INLINE Vector add_product(Vector sums, const float *left, Vector right, const int are_pairs) {
    int32_t pair;
    memcpy(&pair, left, 4);
    if (!are_pairs) return sums + *left * right;
    return (Vector)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)right);
}
#else
#define HAS_PAIRS 0
INLINE Vector add_product(Vector sums, const float *left, Vector right, const int are_pairs) {
    return sums + *left * right;
}
#endif

typedef struct {
    const float *a;        /* A, from the tile's first row and column on */
    int64_t row, column;   /* steps in A */
    const float *panel;    /* B: depth rows of PANEL numbers */
    float *c;              /* C, from the tile's first row and column on */
    int64_t width;         /* columns of C */
    int64_t depth, columns; /* depth: rows of the panel; each is two of B's where words are pairs */
    int add, are_pairs;     /* whether to add to C; whether each word of A and of the panel is two bfloat16 numbers */
    const char *next;      /* what is read soon: *step* bytes of it are fetched at each of the *depth* steps */
    int64_t step;
} Tile;

/* C = A B, or C += A B, for a tile of *rows* x (*vectors* x LANES); both are constants where this is inlined. */
INLINE void multiply_tile(const Tile *t, const int rows, const int vectors, const int are_pairs) {
    Vector sums[ROWS][2];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) sums[i][j] = (Vector){0};
    const float *a = t->a, *b = t->panel;
    const char *next = t->next;
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) __builtin_prefetch(t->c + i * t->width + j * LANES, 1);
    for (int64_t k = 0; k < t->depth; k++, a += t->column, b += PANEL, next += t->step) {
        __builtin_prefetch(next, 0, 2);
        if (are_pairs) __builtin_prefetch(next + t->step / 2, 0, 2); /* there are half as many steps */
        Vector right[2];
        UNROLL for (int j = 0; j < vectors; j++) memcpy(&right[j], b + j * LANES, sizeof(Vector));
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < vectors; j++) sums[i][j] = add_product(sums[i][j], a + i * t->row, right[j], are_pairs);
    }
    UNROLL for (int i = 0; i < rows; i++) {
        float *out = t->c + i * t->width, line[PANEL];
        UNROLL for (int j = 0; j < vectors; j++) memcpy(line + j * LANES, &sums[i][j], sizeof(Vector));
        for (int64_t j = 0; j < t->columns; j++) out[j] = t->add ? out[j] + line[j] : line[j];
    }
}

#define ONE_TILE(N) static void tile_##N(const Tile *t) { \
    const int vectors = t->columns > LANES ? 2 : 1; \
    if (HAS_PAIRS && t->are_pairs) if (vectors == 2) multiply_tile(t, N, 2, 1); else multiply_tile(t, N, 1, 1); \
    else if (vectors == 2) multiply_tile(t, N, 2, 0); else multiply_tile(t, N, 1, 0); }
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

/* C = A B, then end_rows. A: (rows, depth) with steps between its rows and columns, B: (depth, width) likewise,
 * C: (rows, width). */
typedef struct {
    const float *a;
    int64_t a_row, a_column;
    Mask mask;             /* of A, made anew while A is read */
    const float *b;
    int64_t b_row, b_column;
    float *c;
    int64_t rows, depth, width;
    float *packed, *apart; /* room for packed_size(width) numbers; of these the last ROW_BLOCK rows of C */
    const float *factors;
    int relu;
    const float *where;
    float scale;
    uint16_t *words;       /* NULL, or where C's rows go rounded to bfloat16. (rows, width) */
} Product;

/* Return where some rows of C are: without a C, which is for *words* alone, all in the same place behind *packed*. */
static float *rows_of(const Product *p, int64_t top) { return p->c ? p->c + top * p->width : p->apart; }

/* Do end_rows for some rows of C, and round them. */
static void end_block(const Product *p, int64_t top, int64_t rows) {
    end_rows(rows_of(p, top), rows, p->width, p->factors ? p->factors + top : NULL, p->relu,
             p->where ? p->where + top * p->width : NULL, p->scale);
    if (p->words) round_rows(rows_of(p, top), NULL, p->words + top * p->width, rows, p->width);
}

/* In *packed* stand B's panels, and behind them a block of A that is not multiplied as it stands in memory. */
static int64_t vectors_size(int64_t width) { return DEPTH * ((width + PANEL - 1) / PANEL * PANEL + ROW_BLOCK); }

/* A block of A or of B: lines of numbers with steps between them, and the mask's words for these, or none. */
typedef struct {
    const float *from;
    int64_t line, number, lines, numbers;
    const uint32_t *line_words, *number_words;
} Block;

/* Copy a line of a block, times the mask. */
INLINE void copy_line(const Block *b, int64_t i, const Mask *mask, float *out) {
    const float *from = b->from + i * b->line;
    if (b->number != 1) {
        for (int64_t j = 0; j < b->numbers; j++) out[j] = from[j * b->number];
        from = out;
    }
    if (b->line_words) drop_line(from, out, b->numbers, b->line_words[i], b->number_words, mask->least, mask->scale);
    else if (from != out) memcpy(out, from, 4 * b->numbers);
}

/* Make words of two bfloat16 numbers. */
INLINE void make_pairs(const float *low, const float *high, int64_t step, float *out, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        const uint32_t word = nearest(low[j * step]) >> 16 | nearest(high[j * step]);
        memcpy(out + j, &word, 4);
    }
}

/* Copy a block, times the mask. Where *is_rounded*, round it; where there are pairs, each word then holds two numbers:
 * neighbours of one line (*in_line*), or those of two lines in one place. */
static void copy_block(const Block *b, const Mask *mask, int is_rounded, int in_line, float *out, int64_t out_line) {
    const int are_pairs = is_rounded && HAS_PAIRS, of_lines = are_pairs && !in_line;
    float room[2][DEPTH + 1];
    for (int64_t i = 0; i < b->lines; i += 1 + of_lines, out += out_line) {
        float *line = are_pairs ? room[0] : out;
        copy_line(b, i, mask, line);
        if (of_lines) {
            if (i + 1 < b->lines) copy_line(b, i + 1, mask, room[1]);
            else memset(room[1], 0, 4 * b->numbers);
            make_pairs(room[0], room[1], 1, out, b->numbers);
        } else if (are_pairs) {
            line[b->numbers] = 0;
            make_pairs(line, line + 1, 2, out, (b->numbers + 1) / 2);
        } else if (is_rounded)
            for (int64_t j = 0; j < b->numbers; j++) {
                const uint32_t word = nearest(line[j]);
                memcpy(line + j, &word, 4);
            }
    }
}

/* Pack B's rows from *first* on, PANEL columns at a time. */
static void pack_panels(const Product *p, int64_t first, int64_t deep, int64_t words, int is_rounded) {
    for (int64_t begin = 0; begin < p->width; begin += PANEL) {
        const int64_t columns = p->width - begin < PANEL ? p->width - begin : PANEL;
        const Block block = {p->b + first * p->b_row + begin * p->b_column, p->b_row, p->b_column, deep, columns, NULL, NULL};
        float *panel = p->packed + begin * words;
        if (columns < PANEL) memset(panel, 0, 4 * PANEL * words);
        copy_block(&block, NULL, is_rounded, 0, panel, PANEL);
    }
}

static void multiply_by_vectors(const Product *p, int is_rounded) {
    const Mask *mask = &p->mask;
    const int is_copied = is_rounded || mask->rows, are_pairs = is_rounded && HAS_PAIRS;
    const int is_turned = p->a_row == 1 && (is_copied || p->a_column > ROW_BLOCK);
    float *copied = p->packed + vectors_size(p->width) - DEPTH * ROW_BLOCK;
    for (int64_t first = 0; first < p->depth; first += DEPTH) {
        const int64_t deep = p->depth - first < DEPTH ? p->depth - first : DEPTH;
        const int64_t words = are_pairs ? (deep + 1) / 2 : deep;
        pack_panels(p, first, deep, words, is_rounded);
        for (int64_t top = 0; top < p->rows; top += ROW_BLOCK) {
            const int64_t rows = p->rows - top < ROW_BLOCK ? p->rows - top : ROW_BLOCK;
            const float *left = p->a + top * p->a_row + first * p->a_column;
            int64_t row = p->a_row, column = p->a_column;
            /* Soon: of A the next block, or of a transposed A as large a piece of its next *deep* rows. */
            const char *next = (const char *)(p->a_row == 1 ? p->a + (first + deep) * p->a_column + top * deep
                                                            : left + rows * p->a_row);
            const int64_t tiles = (rows + ROWS - 1) / ROWS * ((p->width + PANEL - 1) / PANEL);
            const int64_t step = 4 * rows * (p->a_row == 1 ? deep : p->a_row) / (tiles * words) + 1;
            Block block = {left, row, column, rows, deep, NULL, NULL};
            if (mask->rows) block.line_words = mask->rows + top, block.number_words = mask->columns + first;
            if (is_turned) { /* its columns would be read from a page of memory each */
                block = (Block){left, column, row, deep, rows, block.number_words, block.line_words};
                copy_block(&block, mask, is_rounded, 0, copied, ROW_BLOCK);
                left = copied, row = 1, column = ROW_BLOCK;
            } else if (is_copied) {
                copy_block(&block, mask, is_rounded, 1, copied, words);
                left = copied, row = words, column = 1;
            }
            for (int64_t begin = 0; begin < p->width; begin += PANEL) {
                const int64_t columns = p->width - begin < PANEL ? p->width - begin : PANEL;
                Tile tile = {left, row, column, p->packed + begin * words, rows_of(p, top) + begin, p->width,
                             words, columns, first > 0, are_pairs, next, step};
                multiply_rows(&tile, rows);
                next = tile.next;
            }
            if (first + deep == p->depth) end_block(p, top, rows);
        }
    }
}

/* ---- dense product of bfloat16 numbers by AMX: sums in float32 ----
 *
 * float32 numbers are cut into three pieces of bfloat16, whose sum they are: each has 8 of their 24 digits. Of the nine
 * products of pieces the six largest are added; the others lie below float32's digits. Henry, Tang and Heinecke,
 * "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", ARITH 2019. */

#ifdef __AMX_BF16__
#define SIDE 16               /* rows of a tile; each has 16 words, of two bfloat16 numbers or of one of float32 */
#define STEP (2 * SIDE)       /* depth of a tile */
#define TILE (SIDE * STEP)    /* bfloat16 numbers of a tile */
#define BLOCK (2 * SIDE)      /* rows of A and columns of B that are multiplied at a time: two tiles of each */
#define MOST_PIECES 3

/* Return whether this process may use tiles. Linux wants to be asked: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA. */
int has_tiles(void) { return !syscall(SYS_arch_prctl, 0x1023, 18); }

/* Room for two blocks of A, and for B's panels. */
static int64_t tiles_size(int64_t width) {
    return DEPTH / STEP * MOST_PIECES * TILE * (2 + (width + BLOCK - 1) / BLOCK);
}

/* *lines* of *numbers*, at most 16 x 16 of them; behind them are zeros. */
typedef struct {
    const float *from;
    int64_t line, number;      /* steps between them */
    int64_t lines, numbers;
} Square;

INLINE __mmask16 first_of(int64_t count) { return count >= SIDE ? 0xFFFF : count > 0 ? (1 << count) - 1 : 0; }

INLINE __m512 line_of(const Square *s, int64_t i) {
    return _mm512_maskz_loadu_ps(i < s->lines ? first_of(s->numbers) : 0, s->from + i * s->line);
}

/* Copy a square to *out* with its numbers one after the other. Those of a column stand so in memory, as a rule. */
static void straighten(const Square *s, float *out) {
    __m512 a[SIDE], b[SIDE];
    const Square turned = {s->from, s->number, 1, s->numbers, s->lines};
    if (s->line != 1) {
        for (int64_t i = 0; i < SIDE * SIDE; i++) {
            const int64_t line = i / SIDE, number = i % SIDE;
            out[i] = line < s->lines && number < s->numbers ? s->from[line * s->line + number * s->number] : 0.0f;
        }
        return;
    }
    UNROLL for (int i = 0; i < SIDE; i++) a[i] = line_of(&turned, i);
    UNROLL for (int i = 0; i < SIDE; i += 2)
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    UNROLL for (int i = 0; i < SIDE; i++) {
        const __m512d low = (__m512d)b[i / 4 * 4 + i % 4 / 2], high = (__m512d)b[i / 4 * 4 + i % 4 / 2 + 2];
        a[i] = (__m512)(i % 2 ? _mm512_unpackhi_pd(low, high) : _mm512_unpacklo_pd(low, high));
    }
    UNROLL for (int i = 0; i < SIDE; i++) {
        const int first = i / 8 * 8 + i % 4;
        b[i] = i % 8 < 4 ? _mm512_shuffle_f32x4(a[first], a[first + 4], 0x88)
                         : _mm512_shuffle_f32x4(a[first], a[first + 4], 0xDD);
    }
    UNROLL for (int i = 0; i < SIDE; i++)
        _mm512_storeu_ps(out + i * SIDE, i < 8 ? _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88)
                                               : _mm512_shuffle_f32x4(b[i - 8], b[i], 0xDD));
}

/* Two squares that become a tile of each piece: *low* its low halves of words, *high* its high ones.
 * The tiles of one piece stand side by side with those of the next block of SIDE rows or columns. */
typedef struct {
    Square low, high;
    uint16_t *out;
    Mask mask;
    int64_t rows, columns;     /* that the mask has words for */
    float room[2][SIDE * SIDE];
} Pair;

/* Set up a pair; *mask* is that of its first line and number on. */
INLINE void begin_pair(Pair *p, Square low, Square high, Mask mask, uint16_t *out) {
    p->low = low, p->high = high, p->mask = mask, p->out = out;
    if (low.number != 1) {
        straighten(&low, p->room[0]);
        straighten(&high, p->room[1]);
        p->low = (Square){p->room[0], SIDE, 1, SIDE, SIDE}, p->high = (Square){p->room[1], SIDE, 1, SIDE, SIDE};
    }
}

/* Return numbers times a mask, of which *row* is the word of their line. */
INLINE __m512 masked(__m512 numbers, uint32_t row, const uint32_t *columns, int64_t count, const Mask *mask) {
    Words word = row ^ (Words)_mm512_maskz_loadu_epi32(first_of(count), columns);
    word = (word ^ (word >> 16)) * 0x7FEB352Du; /* as mix */
    word = (word ^ (word >> 15)) * 0x846CA68Bu;
    const __mmask16 kept = _mm512_cmpge_epu32_mask((__m512i)(word ^ (word >> 16)), _mm512_set1_epi32((int)mask->least));
    return numbers * _mm512_maskz_mov_ps(kept, _mm512_set1_ps(mask->scale));
}

/* Cut the lines of a pair from *begin* to *end*. One piece is rounded to the nearest, ties to even. */
INLINE void cut_lines(const Pair *p, int begin, int end, const int pieces) {
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000u), half = _mm512_set1_epi32(0x7FFF);
    const __m512i one = _mm512_set1_epi32(1);
    for (int i = begin; i < end; i++) {
        __m512 low = line_of(&p->low, i), high = line_of(&p->high, i);
        if (p->mask.rows) {
            const uint32_t row = i < p->rows ? p->mask.rows[i] : 0;
            low = masked(low, row, p->mask.columns, p->columns, &p->mask);
            high = masked(high, row, p->mask.columns + SIDE, p->columns - SIDE, &p->mask);
        }
        UNROLL for (int piece = 0; piece < pieces; piece++) {
            __m512i a = (__m512i)low, b = (__m512i)high;
            if (pieces == 1) {
                a = _mm512_add_epi32(a, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(a, 16), one)));
                b = _mm512_add_epi32(b, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(b, 16), one)));
            }
            a = _mm512_and_si512(a, upper), b = _mm512_and_si512(b, upper);
            _mm512_storeu_si512(p->out + 2 * piece * TILE + i * STEP, _mm512_or_si512(_mm512_srli_epi32(a, 16), b));
            low -= (__m512)a, high -= (__m512)b;
        }
    }
}

/* The compiler does not know that tiles are loaded from memory and stored there. */
#define SETTLE __asm__ volatile("" ::: "memory")
#define LEFT(N) _tile_loadd(4, left + 2 * N * TILE, 2 * STEP); _tile_loadd(5, left + (2 * N + 1) * TILE, 2 * STEP)
#define RIGHT(N) _tile_loadd(6, right + 2 * N * TILE, 2 * STEP); _tile_loadd(7, right + (2 * N + 1) * TILE, 2 * STEP)
#define ADD _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7)

/* Add the products of a step to the tiles 0 to 3, in an order in which each needs one new operand; meanwhile *soon*, if
 * there is any, is cut: the vectors would have nothing to do. */
INLINE void add_step(const uint16_t *left, const uint16_t *right, const Pair *soon, const int pieces) {
    if (pieces == 1) {
        LEFT(0); RIGHT(0); ADD;
        if (soon) cut_lines(soon, 0, 16, pieces);
        return;
    }
    LEFT(2); RIGHT(0); ADD;
    if (soon) cut_lines(soon, 0, 3, pieces);
    LEFT(1); ADD;
    if (soon) cut_lines(soon, 3, 6, pieces);
    RIGHT(1); ADD;
    if (soon) cut_lines(soon, 6, 9, pieces);
    LEFT(0); ADD;
    if (soon) cut_lines(soon, 9, 12, pieces);
    RIGHT(0); ADD;
    if (soon) cut_lines(soon, 12, 14, pieces);
    RIGHT(2); ADD;
    if (soon) cut_lines(soon, 14, 16, pieces);
}

/* Begin to cut 16 rows of A, from depth *k* on. */
INLINE void begin_left(Pair *pair, const Product *p, int64_t row, int64_t k, int64_t end, uint16_t *out) {
    const float *from = p->a + row * p->a_row + k * p->a_column;
    Mask mask = p->mask;
    if (mask.rows) mask.rows += row, mask.columns += k;
    pair->rows = p->rows - row, pair->columns = end - k;
    begin_pair(pair, (Square){from, p->a_row, p->a_column, p->rows - row, end - k},
               (Square){from + SIDE * p->a_column, p->a_row, p->a_column, p->rows - row, end - k - SIDE}, mask, out);
}

/* Cut B's rows from *first* to *end*. */
INLINE void cut_right(const Product *p, int64_t first, int64_t end, uint16_t *out, const int pieces) {
    Pair pair;
    for (int64_t column = 0; column < p->width; column += BLOCK)
        for (int64_t k = first; k < end; k += STEP, out += 2 * pieces * TILE)
            for (int64_t j = column; j < column + BLOCK; j += SIDE) {
                const float *from = p->b + k * p->b_row + j * p->b_column;
                begin_pair(&pair, (Square){from, p->b_row, p->b_column, end - k, p->width - j},
                           (Square){from + SIDE * p->b_row, p->b_row, p->b_column, end - k - SIDE, p->width - j},
                           (Mask){0}, out + (j > column) * TILE);
                cut_lines(&pair, 0, SIDE, pieces);
            }
}

/* Write a block of sums to C, or add them to it; *columns* is a constant where this is inlined. */
INLINE void put_sums(const float *sums, float *c, int64_t width, int64_t rows, const int64_t columns, int add) {
    for (int64_t i = 0; i < rows; i++, sums += BLOCK, c += width)
        for (int64_t j = 0; j < columns; j++) c[j] = add ? c[j] + sums[j] : sums[j];
}

/* Store the tiles 0 to 3: a whole block where it belongs, others by way of *sums*. */
INLINE void put_tiles(const Product *p, int64_t top, int64_t column, int add) {
    const int64_t rows = p->rows - top < BLOCK ? p->rows - top : BLOCK;
    const int64_t columns = p->width - column < BLOCK ? p->width - column : BLOCK;
    const int is_whole = !add && columns == BLOCK && rows == BLOCK;
    float sums[BLOCK * BLOCK], *c = rows_of(p, top) + column, *to = is_whole ? c : sums;
    const int64_t row = is_whole ? p->width : BLOCK;
    _tile_stored(0, to, 4 * row); _tile_stored(1, to + SIDE, 4 * row);
    _tile_stored(2, to + SIDE * row, 4 * row); _tile_stored(3, to + SIDE * row + SIDE, 4 * row);
    SETTLE;
    if (is_whole) return;
    if (columns == BLOCK) put_sums(sums, c, p->width, rows, BLOCK, add);
    else put_sums(sums, c, p->width, rows, columns, add);
}

/* What is fetched at each step, while a block of rows is multiplied: of A the block after the next one, or of a
 * transposed A a piece of the rows below; and what is written and compared with in the next block. */
typedef struct { const char *left, *out, *where; int64_t left_bytes, out_bytes; } Fetch;

INLINE Fetch fetch_of(const Product *p, int64_t top, int64_t first, int64_t end, int64_t steps) {
    const int64_t rows = p->rows - top < BLOCK ? p->rows - top : BLOCK;
    const float *left = p->a_row == 1 ? p->a + end * p->a_column + top * (end - first)
                                      : p->a + (top + 2 * BLOCK) * p->a_row + first * p->a_column;
    const float *out = rows_of(p, top + rows), *where = p->where ? p->where + (top + rows) * p->width : out;
    return (Fetch){(const char *)left, (const char *)out, (const char *)where,
                   4 * rows * (p->a_row == 1 ? end - first : p->a_row) / steps, 4 * rows * p->width / steps};
}

INLINE void fetch(Fetch *f) {
    for (int64_t byte = 0; byte < f->left_bytes; byte += 64) __builtin_prefetch(f->left + byte, 0, 2);
    for (int64_t byte = 0; byte < f->out_bytes; byte += 64) {
        __builtin_prefetch(f->out + byte, 1, 2);
        __builtin_prefetch(f->where + byte, 0, 2);
    }
    f->left += f->left_bytes, f->out += f->out_bytes, f->where += f->out_bytes;
}

INLINE void multiply_tiles(const Product *p, const int pieces) {
    const int64_t panels = (p->width + BLOCK - 1) / BLOCK, size = 2 * pieces * TILE; /* of a step's tiles */
    uint16_t *left = (uint16_t *)p->packed, *soon = left + DEPTH / STEP * size, *right = soon + DEPTH / STEP * size;
    Pair pair;
    for (int64_t first = 0; first < p->depth; first += DEPTH) {
        const int64_t end = p->depth - first < DEPTH ? p->depth : first + DEPTH;
        const int64_t steps = (end - first + STEP - 1) / STEP;
        cut_right(p, first, end, right, pieces);
        for (int64_t half = 0; half < 2 * steps; half++) {
            begin_left(&pair, p, half % 2 * SIDE, first + half / 2 * STEP, end, left + half / 2 * size + half % 2 * TILE);
            cut_lines(&pair, 0, SIDE, pieces);
        }
        for (int64_t top = 0; top < p->rows; top += BLOCK) {
            Fetch ahead = fetch_of(p, top, first, end, panels * steps);
            for (int64_t panel = 0; panel < panels; panel++) {
                _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
                for (int64_t step = 0; step < steps; step++) {
                    const Pair *cut = NULL; /* of the next block: half with the first panel, half with a later one */
                    fetch(&ahead);
                    for (int64_t side = 0; side < 2; side++)
                        if (panel == side * panels / 2) {
                            if (cut) cut_lines(cut, 0, SIDE, pieces);
                            begin_left(&pair, p, top + BLOCK + side * SIDE, first + step * STEP, end,
                                       soon + step * size + side * TILE);
                            cut = &pair;
                        }
                    SETTLE;
                    add_step(left + step * size, right + (panel * steps + step) * size, cut, pieces);
                }
                put_tiles(p, top, panel * BLOCK, first > 0);
            }
            if (end == p->depth) end_block(p, top, p->rows - top < BLOCK ? p->rows - top : BLOCK);
            uint16_t *other = left;
            left = soon, soon = other;
        }
    }
}

static void multiply_by_tiles(const Product *p, int is_rounded) {
    const struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } shapes = {
        1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};
    _tile_loadconfig(&shapes);
    if (is_rounded) multiply_tiles(p, 1);
    else multiply_tiles(p, MOST_PIECES);
    _tile_release();
}
#else
int has_tiles(void) { return 0; }
static int64_t tiles_size(int64_t width) { return 0; }
static void multiply_by_tiles(const Product *p, int is_rounded) {}
#endif

int64_t packed_size(int64_t width, int by_tiles) {
    return (by_tiles ? tiles_size(width) : vectors_size(width)) + ROW_BLOCK * width;
}

/* Return the greatest depth of a product that needs no C. */
int64_t most_depth(void) { return DEPTH; }

/* C = A B, then end_rows: see Product. By vectors, or by tiles where there are any; *is_rounded*: of A and B rounded to
 * bfloat16. */
void multiply(const float *a, int64_t a_row, int64_t a_column, const uint32_t *mask_rows, const uint32_t *mask_columns,
              uint32_t least, float kept, const float *b, int64_t b_row, int64_t b_column,
              float *c, int64_t rows, int64_t depth, int64_t width, float *packed, const float *factors, int relu,
              const float *where, float scale, uint16_t *words, int by_tiles, int is_rounded) {
    float *apart = packed + packed_size(width, by_tiles) - ROW_BLOCK * width;
    const Product p = {
        a, a_row, a_column, {mask_rows, mask_columns, least, kept}, b, b_row, b_column, c, rows, depth, width,
        packed, apart, factors, relu, where, scale, words};
    if (by_tiles) multiply_by_tiles(&p, is_rounded);
    else multiply_by_vectors(&p, is_rounded);
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
 * overlap the one before it. *vectors* and *weighted* are constants where it is inlined. */
#define SUM_ROWS(NAME, TYPE, LENGTH) \
INLINE void NAME(const Entries *e, const int64_t *indptr, int64_t count, const int64_t columns, float *out, \
                 int add, const int vectors, const int weighted) { \
    for (int64_t i = 0; i < count; i++, out += e->width) { \
        TYPE sums[SUMS]; \
        int64_t offsets[SUMS]; \
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
    const int64_t pieces = (width + SUMS * LANES - 1) / (SUMS * LANES);
    const int64_t even = pieces > 1 ? ((width + pieces - 1) / pieces + LANES - 1) / LANES * LANES : width;
    for (int64_t column = 0; column < width; column += even) {
        const int64_t columns = width - column < even ? width - column : even;
        const Entries entries = {indices, values, indptr[count], rows + column, width, AHEAD / (4 * columns)};
#define CASE(NAME, N) case N: \
    if (values) NAME(&entries, indptr, count, columns, out + column, add, N, 1); \
    else NAME(&entries, indptr, count, columns, out + column, add, N, 0); \
    break
        if (columns >= LANES)
            switch ((columns + LANES - 1) / LANES) {
                CASE(sum_wide, 1); CASE(sum_wide, 2); CASE(sum_wide, 3); CASE(sum_wide, 4);
                CASE(sum_wide, 5); CASE(sum_wide, 6); CASE(sum_wide, 7); CASE(sum_wide, 8);
                CASE(sum_wide, 9); CASE(sum_wide, 10); CASE(sum_wide, 11); CASE(sum_wide, 12);
                CASE(sum_wide, 13); CASE(sum_wide, 14); CASE(sum_wide, 15); CASE(sum_wide, 16);
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

/* ---- passes over rows ---- */

/* out = left (out + loops own), then ReLU, then a dropout mask, as of drop_out: *left* and *loops* have one number a row;
 * NULL: ones. The own rows are *own*, or in bfloat16 *words*; both NULL: no loops. *row_words* is NULL: no mask. */
void finish(float *restrict out, int64_t count, int64_t width, const float *restrict own,
            const uint16_t *restrict words, const float *loops, const float *left, int relu, const uint32_t *row_words,
            const uint32_t *restrict column_words, uint32_t least, float scale) {
    const float most = relu ? 0.0f : NAN; /* what is no more than this becomes 0; nothing is less than NaN */
    for (int64_t i = 0; i < count; i++, out += width) {
        const float factor = left ? left[i] : 1.0f, loop = loops ? loops[i] : 1.0f;
        for (int64_t j = 0; j < width; j++) {
            const float own_number = own ? own[i * width + j] : words ? widen(words[i * width + j]) : 0.0f;
            const float number = factor * (out[j] + loop * own_number);
            out[j] = number <= most ? 0.0f : number;
        }
        if (row_words)
            for (int64_t j = 0; j < width; j++)
                out[j] *= mix(row_words[i] ^ column_words[j]) >= least ? scale : 0.0f;
    }
}

/* out = mask * rows, or mask * max(0, rows); the mask is *scale* where an element's word is at least *least*, else 0. */
void drop_out(const float *restrict rows, float *restrict out, int64_t count, int64_t width, const uint32_t *row_words,
              const uint32_t *restrict column_words, uint32_t least, float scale, int relu) {
    for (int64_t i = 0; i < count; i++, rows += width, out += width) {
        const uint32_t word = row_words[i];
        if (relu)
            for (int64_t j = 0; j < width; j++)
                out[j] = (mix(word ^ column_words[j]) >= least ? scale : 0.0f) * (rows[j] < 0 ? 0.0f : rows[j]);
        else drop_line(rows, out, width, word, column_words, least, scale);
    }
}

/* out = 0 where *rows* is 0 or less, else scale * gradient: what is not a number passes, so that it is noticed. */
void pass_positive(const float *restrict rows, const float *restrict gradient, float *restrict out, int64_t size,
                   float scale) {
    for (int64_t i = 0; i < size; i++) out[i] = rows[i] <= 0 ? 0.0f : scale * gradient[i];
}
