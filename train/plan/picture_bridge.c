/* Draws a bridge: its source on the left, its destination on the right, and between them an arrow for each route, once
 * for forward and once for backward. Ranks that routes connect, directly or through other ranks, are drawn together. */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "plan/picture.h"

enum { CELL_WIDTH = 230, CELL_LEAST = 30, PORT_HEIGHT = 17, CELL_GAP = 10, ARROWS_DRAWN = 160 };

/* The ranks on one side of a bridge, drawn as cells one under another. */
typedef struct side {
  ad_mesh *mesh;
  int colour;                   /* the colour of the side's pool */
  json_int_t *ranks, *clusters; /* for each cell: its rank, and the smallest sender that routes connect with it */
  int *ports, *tops, *taken;    /* for each cell: the number of its arrows, its top edge, and the arrows drawn so far */
  size_t count;
  int height;
} side;

typedef struct map {
  const json_t *routes;
  size_t count; /* number of routes that are drawn */
  side from, to;
} map;

static json_int_t end_of(const map *m, size_t route, const char *key) {
  return ad_integer_of(json_array_get(m->routes, route), key);
}

/* Returns the index of a rank's cell, or `count` if the rank has no cell yet. */
static size_t cell_of(const side *s, json_int_t rank) {
  size_t i = 0;
  while (i < s->count && s->ranks[i] != rank) i++;
  return i;
}

/* ---- arranging the cells of both sides ---- */

static ad_status make_side(const json_t *plan, const json_t *document, size_t most, side *out) {
  out->colour = ad_picture_colour(document);
  AD_TRY(ad_new(most + 1, &out->ranks));
  AD_TRY(ad_new(most + 1, &out->clusters));
  AD_TRY(ad_new(most + 1, &out->ports));
  AD_TRY(ad_new(most + 1, &out->tops));
  AD_TRY(ad_new(most + 1, &out->taken));
  return ad_picture_mesh(plan, document, &out->mesh);
}

static void release_side(side *s) {
  ad_mesh_destroy(s->mesh);
  ad_release(s->ranks);
  ad_release(s->clusters);
  ad_release(s->ports);
  ad_release(s->tops);
  ad_release(s->taken);
}

/* Adds one end of a route: an arrow at the rank's cell, which is created if it does not exist. */
static void add_end(side *s, json_int_t rank, json_int_t sender) {
  size_t cell = cell_of(s, rank);
  if (cell == s->count) {
    s->ranks[s->count] = rank;
    s->clusters[s->count++] = sender;
  }
  s->ports[cell]++;
}

/* Gives connected ranks the same cluster, by repeating until both ends of every route have the same one. */
static void find_clusters(map *m) {
  for (int changes = 1; changes;) {
    changes = 0;
    for (size_t i = 0; i < m->count; i++) {
      json_int_t *a = &m->from.clusters[cell_of(&m->from, end_of(m, i, "from"))];
      json_int_t *b = &m->to.clusters[cell_of(&m->to, end_of(m, i, "to"))];
      changes |= *a != *b;
      *a = *b = *a < *b ? *a : *b;
    }
  }
}

static void swap(json_int_t *list, size_t i) {
  json_int_t before = list[i - 1];
  list[i - 1] = list[i];
  list[i] = before;
}

static int is_after(const side *s, size_t i, size_t j) {
  return s->clusters[i] > s->clusters[j] || (s->clusters[i] == s->clusters[j] && s->ranks[i] > s->ranks[j]);
}

static void sort(side *s) {
  for (size_t i = 1; i < s->count; i++)
    for (size_t j = i; j && is_after(s, j - 1, j); j--) {
      swap(s->ranks, j);
      swap(s->clusters, j);
      int ports = s->ports[j];
      s->ports[j] = s->ports[j - 1];
      s->ports[j - 1] = ports;
    }
}

static int cell_height(const side *s, size_t cell) {
  int height = s->ports[cell] * PORT_HEIGHT + 6;
  return height > CELL_LEAST ? height : CELL_LEAST;
}

/* Sets the top edges of the cells, and the height of the side. */
static void place(side *s) {
  for (size_t i = 0; i < s->count; i++) {
    if (i) s->height += s->clusters[i] == s->clusters[i - 1] ? CELL_GAP : 2 * CELL_GAP;
    s->tops[i] = s->height;
    s->height += cell_height(s, i);
  }
}

static void arrange(map *m) {
  for (size_t i = 0; i < m->count; i++) {
    add_end(&m->from, end_of(m, i, "from"), end_of(m, i, "from"));
    add_end(&m->to, end_of(m, i, "to"), end_of(m, i, "from"));
  }
  find_clusters(m);
  sort(&m->from);
  sort(&m->to);
  place(&m->from);
  place(&m->to);
}

/* ---- drawing cells and arrows ---- */

static void draw_cells(FILE *file, const side *s, int x, int y) {
  ad_axis axes[AD_AXIS_COUNT];
  char number[AD_GROUPED_MAX], buffer[128], class[16];
  snprintf(class, sizeof class, "cell g%d", s->colour);
  int axis_count = ad_picture_axes(s->mesh, axes);
  for (size_t i = 0; i < s->count; i++) {
    ad_text text = ad_text_on(buffer, sizeof buffer);
    for (int a = 0; a < axis_count; a++)
      ad_text_add(&text, "%s%s=%lld", a ? " " : "", ad_axis_name(axes[a]),
                  (long long)ad_mesh_position(s->mesh, s->ranks[i], axes[a]));
    int top = y + s->tops[i], middle = top + cell_height(s, i) / 2 + 5;
    ad_svg_box(file, x, top, CELL_WIDTH, cell_height(s, i), class);
    ad_svg_text(file, x + 10, middle, "head", "rank %s", ad_grouped(s->ranks[i], number));
    ad_svg_text(file, x + CELL_WIDTH - 10, middle, "small quiet end", "%s", buffer);
  }
}

/* Returns the y at which the next arrow of a rank's cell ends. */
static int port(side *s, json_int_t rank) {
  size_t cell = cell_of(s, rank);
  int first = (cell_height(s, cell) - s->ports[cell] * PORT_HEIGHT) / 2;
  return s->tops[cell] + first + s->taken[cell]++ * PORT_HEIGHT + PORT_HEIGHT / 2;
}

static void draw_label(FILE *file, const json_t *route, int x, int y, const char *class) {
  char bytes[AD_GROUPED_MAX];
  json_int_t first = ad_integer_of(route, "first_row"), rows = ad_integer_of(route, "rows");
  ad_grouped(ad_integer_of(route, "bytes"), bytes);
  if (rows == 1)
    ad_svg_text(file, x, y, class, "row %lld, %s B", (long long)first, bytes);
  else
    ad_svg_text(file, x, y, class, "rows %lld to %lld, %s B", (long long)first, (long long)(first + rows - 1), bytes);
}

/* Draws the arrows from x to to_x and then their labels, so that no arrow crosses a label. Routes are listed sender by
 * sender, so the ends of arrows are used from top to bottom on both sides. */
static ad_status draw_arrows(FILE *file, map *m, int x, int to_x, int from_y, int to_y) {
  int *ends, is_back = to_x < x;
  AD_TRY(ad_new(m->count + 1, &ends));
  for (size_t i = 0; i < m->count; i++) {
    json_int_t from = end_of(m, i, "from"), to = end_of(m, i, "to");
    ends[i] = to_y + port(&m->to, to);
    ad_svg_arrow(file, x, from_y + port(&m->from, from), to_x, ends[i], from == to ? "arrow stays" : "arrow");
  }
  for (size_t i = 0; i < m->count; i++)
    draw_label(file, json_array_get(m->routes, i), to_x + (is_back ? 12 : -12), ends[i] - 4,
               is_back ? "label" : "label end");
  ad_release(ends);
  return AD_OK;
}

/* Writes how many bytes of all routes go to other ranks, and how many stay on their rank. */
static void draw_sums(FILE *file, const map *m, const json_t *way, int y) {
  char moved[AD_GROUPED_MAX], stays[AD_GROUPED_MAX], number[AD_GROUPED_MAX];
  json_int_t sums[2] = {0, 0};
  for (size_t i = 0; i < json_array_size(m->routes); i++)
    sums[end_of(m, i, "from") == end_of(m, i, "to")] += end_of(m, i, "bytes");
  ad_grouped(sums[0], moved);
  ad_grouped(sums[1], stays);
  json_int_t senders = ad_integer_of(way, "senders");
  json_int_t undrawn = (json_int_t)(json_array_size(m->routes) - m->count) + ad_integer_of(way, "routes_left_out");
  char who[80] = "In", more[64] = "";
  if (senders != ad_integer_of(way, "senders_listed"))
    snprintf(who, sizeof who, "Rank %lld, one of %s senders: in", (long long)ad_mesh_first_rank(m->from.mesh),
             ad_grouped(senders, number));
  if (undrawn) snprintf(more, sizeof more, "; %s routes more are not drawn", ad_grouped(undrawn, number));
  ad_svg_text(file, PICTURE_MARGIN, y, "text", "%s a microbatch %s B go to another rank, %s B stay (dashed)%s.", who,
              moved, stays, more);
}

static ad_status draw_map(FILE *file, map *m, const json_t *way, int is_back, int *y) {
  int left = PICTURE_MARGIN, right = PICTURE_WIDTH - PICTURE_MARGIN - CELL_WIDTH;
  arrange(m);
  int height = m->from.height > m->to.height ? m->from.height : m->to.height;
  int from_y = *y + (height - m->from.height) / 2, to_y = *y + (height - m->to.height) / 2;
  draw_cells(file, &m->from, is_back ? right : left, from_y);
  draw_cells(file, &m->to, is_back ? left : right, to_y);
  AD_TRY(draw_arrows(file, m, is_back ? right : left + CELL_WIDTH, is_back ? left + CELL_WIDTH : right, from_y, to_y));
  *y += height + 24;
  draw_sums(file, m, way, *y);
  return AD_OK;
}

static ad_status draw_way(FILE *file, const json_t *plan, const json_t *bridge, int is_back, int *y) {
  const json_t *way = json_object_get(bridge, is_back ? "backward" : "forward");
  map m = {.routes = json_object_get(way, "routes")};
  size_t count = json_array_size(m.routes);
  m.count = count < ARROWS_DRAWN ? count : ARROWS_DRAWN;
  ad_status status = make_side(plan, json_object_get(bridge, is_back ? "to" : "from"), m.count, &m.from);
  if (!status) status = make_side(plan, json_object_get(bridge, is_back ? "from" : "to"), m.count, &m.to);
  if (!status) status = draw_map(file, &m, way, is_back, y);
  release_side(&m.from);
  release_side(&m.to);
  return status;
}

static void draw_head(FILE *file, const json_t *bridge, int y) {
  const json_t *from = json_object_get(bridge, "from"), *to = json_object_get(bridge, "to");
  char rows[AD_GROUPED_MAX];
  json_int_t times = ad_integer_of(bridge, "times");
  ad_svg_text(file, PICTURE_MARGIN, y, "section", "bridge from %s to %s: %s, %s rows, %lld time%s a step",
              ad_text_of(from, "module"), ad_text_of(to, "module"), ad_text_of(bridge, "site"),
              ad_grouped(ad_integer_of(bridge, "rows"), rows), (long long)times, times == 1 ? "" : "s");
}

ad_status ad_picture_bridge(FILE *file, const json_t *plan, const json_t *bridge, int *y) {
  draw_head(file, bridge, *y + 30);
  *y += 30;
  for (int is_back = 0; is_back < 2; is_back++) {
    char bytes[AD_GROUPED_MAX];
    const json_t *way = json_object_get(bridge, is_back ? "backward" : "forward");
    ad_grouped(ad_integer_of(way, "row_bytes"), bytes);
    ad_svg_text(file, PICTURE_MARGIN, *y + 26, "head", "%s: a row has %s B",
                is_back ? "backward, the gradient" : "forward", bytes);
    *y += 40;
    AD_TRY(draw_way(file, plan, bridge, is_back, y));
  }
  *y += 14;
  return AD_OK;
}
