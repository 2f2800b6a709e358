/* Moves of single nodes that lower the halo of a partition: `refine.py` says what the arrays hold. */
#include <stdint.h>

#define LOOSE 3 /* a pin is worth something if there are no more of its net in its part */

typedef struct {
    int64_t num_nodes, num_parts;
    const int64_t *indptr;
    const int32_t *indices;
    const int64_t *weights;       /* of each node: two rows, one for each quantity that is kept even */
    const int64_t *limits;        /* the most that a part may have of each quantity */
    int64_t *owner;
    int32_t *pins;
    int64_t *loads;               /* what each part has of each quantity: two rows */
    const int32_t *worth;         /* LOOSE numbers */
    uint8_t *is_due;
    int32_t *queue;
    int32_t *costs;
    int64_t first, length;        /* of the queue, which begins again at its end */
} State;

static int fits(const State *s, int64_t node, int64_t part) {
    const int64_t *first = s->weights, *second = first + s->num_nodes;
    return s->loads[part] + first[node] <= s->limits[0] && s->loads[s->num_parts + part] + second[node] <= s->limits[1];
}

static int32_t worth_beside(const int32_t *worth, int32_t others) {
    return (others == 0) * worth[0] + (others == 1) * worth[1] + (others == 2) * worth[2];
}

/* Add to each part's cost what one pin more of this net is worth there; return what the pin in part *from* is worth. */
static int32_t weigh(const State *s, int64_t net, int64_t from) {
    const int32_t *pins = s->pins + net * s->num_parts, worth[LOOSE] = {s->worth[0], s->worth[1], s->worth[2]};
    int32_t *restrict costs = s->costs;
    for (int64_t part = 0; part < s->num_parts; part++) costs[part] += worth_beside(worth, pins[part]);
    return worth_beside(worth, pins[from] - 1);
}

/* Return the part to which a move gains most; of equal ones the lightest; the node's own if none is better. */
static int64_t choose(const State *s, int64_t node) {
    const int64_t from = s->owner[node], weight = s->weights[node];
    const int32_t *near = s->pins + node * s->num_parts;
    if (s->loads[from] == weight) return from; /* it would leave an empty part */
    for (int64_t part = 0; part < s->num_parts; part++) s->costs[part] = 0;
    int32_t saved = weigh(s, node, from);
    for (int64_t edge = s->indptr[node]; edge < s->indptr[node + 1]; edge++) saved += weigh(s, s->indices[edge], from);
    int64_t best = from, lightest = s->loads[from] - weight;
    int32_t most = 0;
    for (int64_t part = 0; part < s->num_parts; part++) {
        const int32_t gain = saved - s->costs[part];
        if (part == from || !near[part] || gain < most || !fits(s, node, part)) continue;
        if (gain == most && s->loads[part] >= lightest) continue;
        best = part, most = gain, lightest = s->loads[part];
    }
    return best;
}

static void make_due(State *s, int64_t node) {
    if (s->is_due[node]) return;
    s->is_due[node] = 1;
    s->queue[(s->first + s->length++) % s->num_nodes] = node;
}

static void move_pin(State *s, int64_t node, int64_t from, int64_t to) {
    int32_t *pins = s->pins + node * s->num_parts;
    pins[from]--, pins[to]++;
    make_due(s, node);
}

static void move(State *s, int64_t node, int64_t to) {
    const int64_t from = s->owner[node];
    for (int64_t edge = s->indptr[node]; edge < s->indptr[node + 1]; edge++) move_pin(s, s->indices[edge], from, to);
    move_pin(s, node, from, to);
    for (int quantity = 0; quantity < 2; quantity++) {
        const int64_t weight = s->weights[quantity * s->num_nodes + node], row = quantity * s->num_parts;
        s->loads[row + from] -= weight;
        s->loads[row + to] += weight;
    }
    s->owner[node] = to;
}

/* Return whether few moves would take the net out of the part of one of its nodes. */
static int is_loose(const State *s, int64_t net, int64_t node) {
    return s->pins[net * s->num_parts + s->owner[node]] <= LOOSE;
}

/* Let the nodes be due whose move may gain: those of the few pins that a net has in a part. */
static void find_due(State *s) {
    for (int64_t net = 0; net < s->num_nodes; net++) {
        const int32_t *pins = s->pins + net * s->num_parts;
        int parts = 0, loose = 0;
        for (int64_t part = 0; part < s->num_parts; part++) {
            parts += pins[part] > 0;
            loose += pins[part] > 0 && pins[part] <= LOOSE;
        }
        if (parts < 2 || !loose) continue;
        for (int64_t edge = s->indptr[net]; edge < s->indptr[net + 1]; edge++)
            if (is_loose(s, net, s->indices[edge])) make_due(s, s->indices[edge]);
        if (is_loose(s, net, net)) make_due(s, net);
    }
}

/* Count the pins, which are zero. */
void count_pins(const State *s) {
    for (int64_t node = 0; node < s->num_nodes; node++) {
        int32_t *pins = s->pins + node * s->num_parts;
        pins[s->owner[node]]++;
        for (int64_t edge = s->indptr[node]; edge < s->indptr[node + 1]; edge++) pins[s->owner[s->indices[edge]]]++;
    }
}

/* Move nodes, first come, first served, in rounds, until one moves fewer than a thousandth of the nodes. */
void sweep(State *s) {
    for (int64_t moved = s->num_nodes; moved && 1000 * moved >= s->num_nodes;) {
        moved = 0;
        find_due(s);
        while (s->length) {
            const int64_t node = s->queue[s->first];
            s->first = (s->first + 1) % s->num_nodes, s->length--;
            s->is_due[node] = 0;
            const int64_t to = choose(s, node);
            if (to == s->owner[node]) continue;
            move(s, node, to);
            moved++;
        }
    }
}
