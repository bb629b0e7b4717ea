/* Draws a plan as an SVG picture: for each mesh its ranks, and for each set of axes a card with the groups over these
 * axes and their collectives. Everything is read from the plan's document. picture_pools.c draws pools and
 * picture_bridge.c draws bridges; if modules send each other several values, picture_exchanges.c draws exchanges in
 * place of pools and bridges. */
#include "plan/picture.h"

#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/text_stream.h"
#include "files/json.h"
#include "plan/plan.h"
#include "plan/schedule.h"
#include "mesh/mesh.h"

enum {
  CARDS_IN_ROW = 3,
  OWN_CARDS_IN_ROW = 4, /* cards in a row, if the groups of all modules are in one section */
  GAP = 16,
  CARD_PADDING = 14,
  CARD_HEAD = 48, /* height of the text above the ranks on a card */
  ENTRY_HEIGHT = 38,
  COMMAND_COLUMNS = 132,
  LINE_HEIGHT = 17,
  AXIS_ROOM = 34, /* space on the left of the ranks and above them, for their positions */
  HEAD_ROOM = 20,
  ROW_HEIGHT = 24,
  CELL_MOST = 40,
  DIGIT_WIDTH = 7,
  RANKS_DRAWN = 64, /* if a mesh has more ranks, only one of its groups is drawn */
  COLUMNS_WANTED = 8,
  COLUMNS_MOST = 16
};

/* Collectives that share a line of a card, because they have the same operation, axes, dtype and time. */
typedef struct kind {
  const json_t *first; /* the first collective, from which mesh and pool are read */
  const char *mesh, *op, *axes, *dtype, *when, *carries;
  json_int_t pool, bytes, calls; /* bytes and calls are those of a step */
} kind;

/* A picture that is being drawn. */
typedef struct picture {
  FILE *file;
  const json_t *plan;
  ad_exchanges exchanges;
  kind *kinds;
  size_t kind_count;
  int width; /* width of the picture in pixels */
  /* where the next part of the picture begins */
  int y;
} picture;

/* ---- kinds of collectives that the picture distinguishes ---- */

/* Returns 1 if collectives of this kind run on the mesh of `entry`, a module or a collective. */
static int is_on(const kind *k, const json_t *entry) {
  return k->pool == ad_integer_of(entry, "pool") && !strcmp(k->mesh, ad_text_of(entry, "mesh"));
}

static int is_same(const kind *a, const kind *b) {
  return is_on(a, b->first) && !strcmp(a->op, b->op) && !strcmp(a->axes, b->axes) && !strcmp(a->dtype, b->dtype) &&
         !strcmp(a->when, b->when) && !strcmp(a->carries, b->carries);
}

/* Adds a collective to the kind with the same operation, axes, dtype and time, or as a new kind. Collectives in groups
 * of one rank are left out. */
static void add_kind(picture *to, const json_t *step, const char *carries) {
  json_int_t times = ad_integer_of(step, "times");
  kind added = {step,
                ad_text_of(step, "mesh"),
                ad_text_of(step, "op"),
                ad_text_of(step, "axes"),
                ad_text_of(step, "dtype"),
                ad_text_of(step, "when"),
                carries,
                ad_integer_of(step, "pool"),
                times * ad_integer_of(step, "bytes"),
                times};
  if (!*added.axes || ad_integer_of(step, "group_size") == 1) return;
  for (size_t i = 0; i < to->kind_count; i++) {
    if (!is_same(&to->kinds[i], &added)) continue;
    to->kinds[i].bytes += added.bytes;
    to->kinds[i].calls += added.calls;
    return;
  }
  to->kinds[to->kind_count++] = added;
}

/* Returns 1 if a transition is the sum of a gradient that a bridge makes before it sends the gradient's rows back. */
static int is_of_bridge(const json_t *plan, const json_t *step) {
  const json_t *bridge;
  size_t i;
  json_array_foreach(json_object_get(plan, "bridges"), i,
                     bridge) if (!strcmp(ad_text_of(bridge, "site"), ad_text_of(step, "site"))) return 1;
  return 0;
}

static ad_status find_kinds(picture *to) {
  const json_t *collectives = json_object_get(to->plan, "collectives"), *step;
  const json_t *activations = json_object_get(to->plan, "activations");
  size_t i;
  AD_TRY(ad_new(json_array_size(collectives) + json_array_size(activations) + 1, &to->kinds));
  json_array_foreach(collectives, i, step) add_kind(to, step, ad_plan_carried_by(step));
  json_array_foreach(activations, i, step)
      add_kind(to, step, is_of_bridge(to->plan, step) ? "of the bridge" : "activations");
  return AD_OK;
}

/* ---- drawing the ranks of a mesh ---- */

int ad_picture_axes(const ad_mesh *mesh, ad_axis axes[AD_AXIS_COUNT]) {
  int count = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_mesh_axis_size(mesh, (ad_axis)axis) == 1) continue;
    int at = count++;
    for (; at && ad_mesh_stride(mesh, axes[at - 1]) < ad_mesh_stride(mesh, (ad_axis)axis); at--)
      axes[at] = axes[at - 1];
    axes[at] = (ad_axis)axis;
  }
  return count;
}

/* How the ranks of a mesh are placed on a card. Fast axes make the columns, slow axes make the rows. is_transposed:
 * columns and rows are exchanged, because the grid would be wider than high. is_wrapped: the only axis is long and
 * continues in the next row. */
typedef struct grid {
  const ad_mesh *mesh;
  ad_axis axes[AD_AXIS_COUNT];
  int axis_count, slow; /* the slow axes are axes[0] to axes[slow - 1] */
  int fast_size;        /* number of ranks along the fast axes together */
  int columns, rows, is_transposed, is_wrapped;
  int room; /* width that the card has for the ranks */
} grid;

/* Returns 1 if the next slower axis, of `size` ranks, can be added to the columns. */
static int fits_beside(const grid *g, int size) {
  int64_t ranks = ad_mesh_size(g->mesh);
  return g->slow > 1 && g->fast_size * size <= COLUMNS_WANTED && (int64_t)g->fast_size * g->fast_size < ranks;
}

/* Decides which axes make the columns. */
static void choose_fast_axes(grid *g) {
  g->fast_size = 1;
  for (; g->slow; g->slow--) {
    int size = (int)ad_mesh_axis_size(g->mesh, g->axes[g->slow - 1]);
    if (g->slow < g->axis_count && !fits_beside(g, size)) break;
    g->fast_size *= size;
  }
}

static int card_width(int cards_in_row) {
  return (PICTURE_WIDTH - 2 * PICTURE_MARGIN - (cards_in_row - 1) * GAP) / cards_in_row;
}

/* Returns how many columns fit on the card, if each is wide enough for a rank's number. */
static int columns_most(const grid *g) {
  int digits = snprintf(NULL, 0, "%lld", (long long)(ad_mesh_first_rank(g->mesh) + ad_mesh_size(g->mesh) - 1));
  int most = g->room / (DIGIT_WIDTH * digits + 4);
  return most < COLUMNS_MOST ? most : COLUMNS_MOST;
}

static grid grid_of(const ad_mesh *mesh, int cards_in_row) {
  grid g = {.mesh = mesh, .columns = 1, .room = card_width(cards_in_row) - 2 * CARD_PADDING};
  g.axis_count = g.slow = ad_picture_axes(mesh, g.axes);
  if (ad_mesh_size(mesh) > RANKS_DRAWN) return g;
  choose_fast_axes(&g);
  int ranks = (int)ad_mesh_size(mesh), slow_size = ranks / g.fast_size;
  g.is_transposed = slow_size > g.fast_size && slow_size <= COLUMNS_WANTED;
  g.columns = g.is_transposed ? slow_size : g.fast_size;
  g.is_wrapped = g.columns > columns_most(&g);
  if (g.is_wrapped) g.columns = columns_most(&g);
  g.rows = (ranks + g.columns - 1) / g.columns;
  return g;
}

static int column_of(const grid *g, int rank) { return g->is_transposed ? rank / g->fast_size : rank % g->columns; }
static int grid_row(const grid *g, int rank) { return g->is_transposed ? rank % g->fast_size : rank / g->columns; }

static int64_t first_of(const grid *g) { return ad_mesh_first_rank(g->mesh); }
static int is_drawn(const grid *g) { return g->rows > 0; }
static int grid_height(const grid *g) { return is_drawn(g) ? HEAD_ROOM + g->rows * ROW_HEIGHT : ROW_HEIGHT; }

/* Writes a rank's positions on axes[first] to axes[end - 1]: "0,1". */
static const char *positions(const grid *g, int first, int end, int64_t rank, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int i = first; i < end; i++)
    ad_text_add(&text, "%s%lld", i > first ? "," : "", (long long)ad_mesh_position(g->mesh, rank, g->axes[i]));
  return buffer;
}

static const char *names(const grid *g, int first, int end, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (int i = first; i < end; i++) ad_text_add(&text, "%s%s", i > first ? "," : "", ad_axis_name(g->axes[i]));
  return buffer;
}

/* Returns the space on the left of the ranks for positions on the slow axes, or 0 if there are no slow axes. */
static int axis_room(const grid *g) { return g->slow ? AXIS_ROOM : 0; }

static int cell_width(const grid *g) {
  int width = (g->room - axis_room(g)) / g->columns;
  return width < CELL_MOST ? width : CELL_MOST;
}

static const char *slow_positions(const grid *g, int64_t rank, char *buffer, size_t size) {
  return positions(g, 0, g->slow, rank, buffer, size);
}
static const char *fast_positions(const grid *g, int64_t rank, char *buffer, size_t size) {
  return positions(g, g->slow, g->axis_count, rank, buffer, size);
}

static void draw_positions(FILE *file, const grid *g, int x, int y) {
  char text[64];
  int width = cell_width(g), ranks = (int)ad_mesh_size(g->mesh);
  for (int rank = 0; rank < ranks && !g->is_wrapped; rank++) {
    int column = column_of(g, rank), row = grid_row(g, rank);
    const char *across = (g->is_transposed ? slow_positions : fast_positions)(g, first_of(g) + rank, text, sizeof text);
    if (!row)
      ad_svg_text(file, x + axis_room(g) + column * width + width / 2, y + HEAD_ROOM - 6, "small quiet middle", "%s",
                  across);
    const char *down = (g->is_transposed ? fast_positions : slow_positions)(g, first_of(g) + rank, text, sizeof text);
    if (!column && g->slow)
      ad_svg_text(file, x + axis_room(g) - 8, y + HEAD_ROOM + row * ROW_HEIGHT + 16, "small quiet end", "%s", down);
  }
}

/* Returns the index of the rank's group over `axes`. Groups are numbered in the order of their first ranks. */
static int group_number(const ad_mesh *mesh, ad_axes axes, int64_t rank) {
  int number = 0;
  int64_t first = ad_mesh_group(mesh, axes, rank).base;
  for (int64_t other = ad_mesh_first_rank(mesh); other < first; other++)
    number += ad_mesh_group(mesh, axes, other).base == other;
  return number;
}

/* Draws all ranks of a mesh, coloured by their group over `axes`, or in one colour if `axes` is 0. */
static void draw_ranks(FILE *file, const grid *g, ad_axes axes, int x, int y) {
  int width = cell_width(g);
  draw_positions(file, g, x, y);
  for (int rank = 0; rank < (int)ad_mesh_size(g->mesh); rank++) {
    int left = x + axis_room(g) + column_of(g, rank) * width, top = y + HEAD_ROOM + grid_row(g, rank) * ROW_HEIGHT;
    int group = axes ? group_number(g->mesh, axes, first_of(g) + rank) : -1;
    char class[16] = "cell none";
    if (axes) snprintf(class, sizeof class, "cell g%d", group % 8);
    ad_svg_box(file, left, top, width - 2, ROW_HEIGHT - 2, class);
    ad_svg_text(file, left + width / 2 - 1, top + 15, "small middle", "%lld", (long long)first_of(g) + rank);
    if (axes && group < 26 && width >= 28) ad_svg_text(file, left + 3, top + 9, "tiny quiet", "%c", 'a' + group);
  }
}

/* Draws, for a mesh that is too large, only the first group over `axes`: its first members, dots, and its last
 * member. */
static void draw_one_group(FILE *file, const grid *g, ad_axes axes, int x, int y) {
  char text[AD_GROUPED_MAX];
  ad_group group = ad_mesh_group(g->mesh, axes, first_of(g));
  int64_t size = ad_group_size(&group);
  int width = 12 + 7 * (int)strlen(ad_grouped(ad_group_rank(&group, size - 1), text));
  int places = g->room / width > 3 ? g->room / width : 3;
  if (width > g->room / places) width = g->room / places;
  for (int place = 0; place < places && place < size; place++) {
    int is_gap = size > places && place == places - 2;
    int64_t member = size > places && place == places - 1 ? size - 1 : place;
    int left = x + place * width;
    if (!is_gap) ad_svg_box(file, left, y, width - 3, ROW_HEIGHT - 2, "cell g0");
    ad_svg_text(file, left + width / 2 - 1, y + 15, "small middle", "%s",
                is_gap ? "..." : ad_grouped(ad_group_rank(&group, member), text));
  }
}

/* ---- cards: one for each set of axes of a mesh ---- */

/* Returns the kind with this index among the kinds that have the mesh and axes of kinds[of], or NULL if there are
 * fewer. */
static const kind *kind_beside(const picture *p, size_t of, size_t index) {
  for (size_t i = 0; i < p->kind_count; i++)
    if (is_on(&p->kinds[i], p->kinds[of].first) && !strcmp(p->kinds[i].axes, p->kinds[of].axes) && !index--)
      return &p->kinds[i];
  return NULL;
}

static int is_first_of_its_card(const picture *p, size_t i) { return kind_beside(p, i, 0) == &p->kinds[i]; }

/* Draws a card with the ranks of a mesh and their positions. */
static void draw_mesh_card(FILE *file, const grid *g, int x, int y) {
  char text[128], count[AD_GROUPED_MAX];
  ad_svg_text(file, x, y + 14, "head", "%s rank%s", ad_grouped(ad_mesh_size(g->mesh), count),
              ad_plural(ad_mesh_size(g->mesh)));
  if (!is_drawn(g)) {
    draw_one_group(file, g, ad_mesh_large(g->mesh), x, y + CARD_HEAD);
    return;
  }
  const char *fast = g->is_transposed ? "rows" : "columns", *slow = g->is_transposed ? "columns" : "rows";
  int end = x + g->room;
  if (g->axis_count > g->slow)
    ad_svg_text(file, x, y + 34, "small quiet", "%s: %s%s", fast, names(g, g->slow, g->axis_count, text, sizeof text),
                g->is_wrapped ? ", row after row" : "");
  if (g->slow)
    ad_svg_text(file, end, y + 34, "small quiet end", "%s: %s", slow, names(g, 0, g->slow, text, sizeof text));
  draw_ranks(file, g, 0, x, y + CARD_HEAD);
}

/* Writes `when` with spaces in place of '_', for readers of the picture. */
static const char *spoken(const char *when, char *buffer, size_t size) {
  snprintf(buffer, size, "%s", when);
  for (char *c = buffer; *c; c++)
    if (*c == '_') *c = ' ';
  return buffer;
}

/* Draws a line of a card: a kind of collective with its bytes and calls. */
static void draw_entry(FILE *file, const kind *k, int x, int end, int y) {
  char bytes[AD_GROUPED_MAX], calls[AD_GROUPED_MAX], when[40];
  ad_svg_text(file, x, y, "head", "%s", k->op);
  ad_svg_text(file, end, y, "end", "%s B", ad_grouped(k->bytes, bytes));
  ad_svg_text(file, x, y + 16, "small quiet", "%s, %s", k->carries, spoken(k->when, when, sizeof when));
  ad_svg_text(file, end, y + 16, "small quiet end", "%s call%s, %s", ad_grouped(k->calls, calls),
              k->calls == 1 ? "" : "s", k->dtype);
}

/* Draws the card of the groups over the axes of kinds[first], with all collectives over these axes. */
static ad_status draw_group_card(const picture *p, const grid *g, size_t first, int x, int y) {
  char groups[AD_GROUPED_MAX], size[AD_GROUPED_MAX];
  const kind *k;
  ad_axes axes;
  AD_TRY(ad_axes_parse(p->kinds[first].axes, &axes));
  int64_t members = ad_mesh_ranks_over(g->mesh, axes), count = ad_mesh_size(g->mesh) / members;
  ad_svg_text(p->file, x, y + 14, "head", "over %s", p->kinds[first].axes);
  ad_svg_text(p->file, x, y + 34, "small quiet", "%s group%s of %s rank%s%s", ad_grouped(count, groups),
              ad_plural(count), ad_grouped(members, size), ad_plural(members),
              is_drawn(g) || count == 1 ? "" : "; the first:");
  if (is_drawn(g))
    draw_ranks(p->file, g, axes, x, y + CARD_HEAD);
  else
    draw_one_group(p->file, g, axes, x, y + CARD_HEAD);
  y += CARD_HEAD + grid_height(g) + 20;
  for (size_t i = 0; (k = kind_beside(p, first, i)); i++)
    draw_entry(p->file, k, x, x + g->room, y + (int)i * ENTRY_HEIGHT);
  return AD_OK;
}

/* ---- sections: one for each mesh ---- */

ad_status ad_picture_mesh(const json_t *plan, const json_t *entry, ad_mesh **out) {
  return ad_mesh_create_pool(ad_text_of(entry, "mesh"), ad_integer_of(ad_pool_of(plan, entry), "first_rank"), out);
}

static int is_same_mesh(const json_t *a, const json_t *b) {
  return ad_integer_of(a, "pool") == ad_integer_of(b, "pool") && !strcmp(ad_text_of(a, "mesh"), ad_text_of(b, "mesh"));
}

/* Writes the names of the modules on the mesh of `entry`, or "" if the mesh is a view (other axes for the same
 * ranks). */
static const char *modules_on(const json_t *plan, const json_t *entry, char *buffer, size_t size) {
  const json_t *module;
  size_t i;
  ad_text text = ad_text_on(buffer, size);
  json_array_foreach(json_object_get(plan, "modules"), i, module) if (is_same_mesh(module, entry))
      ad_text_add(&text, "%s%s", text.used ? ", " : "", ad_text_of(module, "name"));
  return buffer;
}

/* Returns the most lines that any card of this mesh has. */
static int most_entries(const picture *p, const json_t *entry) {
  int most = 0;
  for (size_t i = 0; i < p->kind_count; i++)
    for (int entries = 1; is_on(&p->kinds[i], entry) && kind_beside(p, i, (size_t)entries - 1); entries++)
      most = entries > most ? entries : most;
  return most;
}

/* Draws the frame of the card with this index in its section, in which all cards have the same height. Returns the x of
 * the card's inside, and sets *y to its top. */
static int begin_card(const picture *p, int index, int in_row, int height, int *y) {
  int width = card_width(in_row), x = PICTURE_MARGIN + index % in_row * (width + GAP);
  *y = p->y + index / in_row * (height + GAP);
  ad_svg_box(p->file, x, *y, width, height, "card");
  *y += CARD_PADDING;
  return x + CARD_PADDING;
}

static int card_height(const picture *p, const json_t *entry, const grid *g) {
  int entries = most_entries(p, entry);
  return 2 * CARD_PADDING + CARD_HEAD + grid_height(g) + (entries ? 8 + entries * ENTRY_HEIGHT : 0);
}

static ad_status draw_cards(picture *to, const json_t *entry, const ad_mesh *mesh) {
  grid g = grid_of(mesh, CARDS_IN_ROW);
  int cards = 0, y, height = card_height(to, entry, &g);
  int x = begin_card(to, cards++, CARDS_IN_ROW, height, &y);
  draw_mesh_card(to->file, &g, x, y);
  for (size_t i = 0; i < to->kind_count; i++) {
    if (!is_on(&to->kinds[i], entry) || !is_first_of_its_card(to, i)) continue;
    x = begin_card(to, cards++, CARDS_IN_ROW, height, &y);
    AD_TRY(draw_group_card(to, &g, i, x, y));
  }
  to->y += (cards + CARDS_IN_ROW - 1) / CARDS_IN_ROW * (height + GAP);
  return AD_OK;
}

/* Draws the section of the mesh on which `entry` is; `entry` is a module or a collective. */
static ad_status draw_section(picture *to, const json_t *entry) {
  char on[256];
  ad_mesh *mesh;
  AD_TRY(ad_picture_mesh(to->plan, entry, &mesh));
  to->y += 30;
  modules_on(to->plan, entry, on, sizeof on);
  ad_svg_text(to->file, PICTURE_MARGIN, to->y, "section", "%s on %s", *on ? on : "the same ranks, seen",
              ad_mesh_text(mesh));
  to->y += 14;
  ad_status status = draw_cards(to, entry, mesh);
  ad_mesh_destroy(mesh);
  return status;
}

/* Returns 1 if one of the first `modules` modules, or of the first `kinds` kinds, is on the mesh of `entry`. */
static int is_among(const picture *p, size_t modules, size_t kinds, const json_t *entry) {
  for (size_t i = 0; i < modules; i++)
    if (is_same_mesh(json_array_get(json_object_get(p->plan, "modules"), i), entry)) return 1;
  for (size_t i = 0; i < kinds; i++)
    if (is_on(&p->kinds[i], entry)) return 1;
  return 0;
}

/* Draws a section for each mesh that a module has, and for each view on which collectives run. */
static ad_status draw_sections(picture *to) {
  const json_t *modules = json_object_get(to->plan, "modules"), *module;
  size_t m;
  json_array_foreach(modules, m, module) if (!is_among(to, m, 0, module)) AD_TRY(draw_section(to, module));
  for (size_t i = 0; i < to->kind_count; i++)
    if (!is_among(to, m, i, to->kinds[i].first)) AD_TRY(draw_section(to, to->kinds[i].first));
  return AD_OK;
}

/* ---- one section for the groups of all modules, in a picture with exchanges ---- */

/* Returns 1 if the kind of collectives with index i gets a card. If several modules are one party, only the first
 * module gets cards. */
static int has_card(const picture *p, size_t i) {
  return is_first_of_its_card(p, i) && ad_party_begins_in(&p->exchanges, p->kinds[i].pool);
}

static ad_status most_height(const picture *p, int *height) {
  for (size_t i = 0; i < p->kind_count; i++) {
    ad_mesh *mesh;
    if (!has_card(p, i)) continue;
    AD_TRY(ad_picture_mesh(p->plan, p->kinds[i].first, &mesh));
    grid g = grid_of(mesh, OWN_CARDS_IN_ROW);
    int own = LINE_HEIGHT + card_height(p, p->kinds[i].first, &g);
    if (own > *height) *height = own;
    ad_mesh_destroy(mesh);
  }
  return AD_OK;
}

/* Writes the parties whose ranks are in the groups of a kind: all parties on its mesh. A party with more ranks than the
 * mesh consists of many modules; the mesh is then that of its first module. */
static const char *parties_on(const picture *p, const kind *k, int64_t ranks, char *buffer, size_t size) {
  char name[128];
  ad_text text = ad_text_on(buffer, size);
  for (size_t i = 0; i < p->exchanges.party_count; i++) {
    const ad_party *party = &p->exchanges.parties[i];
    if (party->pool != k->pool || strcmp(party->mesh, k->mesh) != 0) continue;
    ad_text_add(&text, "%s%s", text.used ? ", " : "", ad_party_text(party, name, sizeof name));
    if (party->ranks > ranks) ad_text_add(&text, ", the first of %zu", party->modules);
  }
  return buffer;
}

static ad_status draw_own_card(picture *to, size_t i, int index, int height) {
  char of[256];
  ad_mesh *mesh;
  int y, x = begin_card(to, index, OWN_CARDS_IN_ROW, height, &y);
  AD_TRY(ad_picture_mesh(to->plan, to->kinds[i].first, &mesh));
  ad_svg_text(to->file, x, y + 14, "head", "%s", parties_on(to, &to->kinds[i], ad_mesh_size(mesh), of, sizeof of));
  grid g = grid_of(mesh, OWN_CARDS_IN_ROW);
  ad_status status = draw_group_card(to, &g, i, x, y + LINE_HEIGHT);
  ad_mesh_destroy(mesh);
  return status;
}

static ad_status draw_own_sums(picture *to) {
  int cards = 0, height = 0;
  AD_TRY(most_height(to, &height));
  if (!height) return AD_OK;
  to->y += 30;
  ad_svg_text(to->file, PICTURE_MARGIN, to->y, "section", "what each sums among its own ranks");
  to->y += 14;
  for (size_t i = 0; i < to->kind_count; i++)
    if (has_card(to, i)) AD_TRY(draw_own_card(to, i, cards++, height));
  to->y += (cards + OWN_CARDS_IN_ROW - 1) / OWN_CARDS_IN_ROW * (height + GAP);
  return AD_OK;
}

/* ---- the whole picture ---- */

static ad_status draw_bridges(picture *to) {
  const json_t *bridge;
  size_t i;
  json_array_foreach(json_object_get(to->plan, "bridges"), i, bridge)
      AD_TRY(ad_picture_bridge(to->file, to->plan, bridge, &to->y));
  return AD_OK;
}

static void draw_note_on_exchanges(picture *to) {
  to->y += 10;
  ad_svg_text(
      to->file, PICTURE_MARGIN, to->y, "small quiet",
      "Arrows: the bytes that the ranks at the tip take in a step, own ones included, and the dtype they travel in.");
  to->y += 6;
}

static void draw_note(picture *to) {
  to->y += 10;
  ad_svg_text(to->file, PICTURE_MARGIN, to->y, "small quiet",
              "Cells are ranks; those of one colour and letter are a group. Bytes: what one group sums, gathers or "
              "exchanges in a step,");
  ad_svg_text(to->file, PICTURE_MARGIN, to->y + 16, "small quiet",
              "all calls together. Nothing ran: the types of the program say all this.");
  to->y += 16 + PICTURE_MARGIN;
}

/* Draws the command that made the picture. A long command continues in the next line. */
static void draw_command(picture *to, const char *command) {
  while (*command) {
    size_t length = strlen(command), end = length < COMMAND_COLUMNS ? length : COMMAND_COLUMNS;
    while (end < length && end && command[end] != ' ') end--;
    if (!end) end = strcspn(command, " ");
    ad_svg_text(to->file, PICTURE_MARGIN, to->y, "code quiet", "%.*s", (int)end, command);
    command += end + strspn(command + end, " ");
    to->y += LINE_HEIGHT;
  }
}

static ad_status draw_head(picture *to, const ad_recipe *recipe, const char *command) {
  char mesh[1024], text[1100], ranks[AD_GROUPED_MAX];
  json_t *typed = ad_json_text(command ? command : "");
  if (!typed) return ad_fail(AD_MEMORY, "no memory for the command line that a picture shows");
  snprintf(text, sizeof text, "%s rank%s, mesh %s", ad_grouped(ad_integer_of(to->plan, "world"), ranks),
           ad_plural(ad_integer_of(to->plan, "world")), ad_recipe_mesh_text(recipe, mesh, sizeof mesh));
  ad_svg_text(to->file, PICTURE_MARGIN, 40, "title", "%s", recipe->name);
  ad_svg_text(to->file, PICTURE_MARGIN, 64, "text", "%s", text);
  to->width = 2 * PICTURE_MARGIN + ad_svg_text_width("title", recipe->name);
  int line = 2 * PICTURE_MARGIN + ad_svg_text_width("text", text);
  if (to->width < line) to->width = line;
  if (to->width < PICTURE_WIDTH) to->width = PICTURE_WIDTH;
  to->y = 84;
  draw_command(to, json_string_value(typed));
  json_decref(typed);
  return AD_OK;
}

static ad_status draw_all(picture *to, const ad_recipe *recipe, const char *command) {
  AD_TRY(draw_head(to, recipe, command));
  AD_TRY(find_kinds(to));
  AD_TRY(ad_exchanges_of(to->plan, &to->exchanges));
  if (ad_exchanges_join_values(&to->exchanges)) {
    ad_picture_exchanges(to->file, &to->exchanges, &to->y);
    AD_TRY(draw_own_sums(to));
    draw_note_on_exchanges(to);
  } else {
    ad_picture_pools(to->file, to->plan, &to->y);
    AD_TRY(draw_bridges(to));
    AD_TRY(draw_sections(to));
  }
  draw_note(to);
  return AD_OK;
}

static const char in_messages[] = "the picture of the plan";

/* Draws the plan, first into memory, because an SVG begins with its height, which is known only at the end. */
static ad_status draw_plan(const ad_recipe *recipe, const char *command, const json_t *plan, FILE *file) {
  char *body;
  ad_text_stream to;
  AD_TRY(ad_text_stream_open(in_messages, &to));
  picture all = {.file = to.file, .plan = plan};
  ad_status status = ad_text_stream_close(&to, draw_all(&all, recipe, command), &body);
  ad_release(all.kinds);
  ad_exchanges_release(&all.exchanges);
  AD_TRY(status);
  ad_svg_begin(file, all.width, all.y, recipe->name);
  fputs(body, file);
  ad_svg_end(file);
  free(body);
  return AD_OK;
}

static ad_status picture_of(const ad_recipe *recipe, const char *command, const json_t *plan, char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open(in_messages, &to));
  return ad_text_stream_close(&to, draw_plan(recipe, command, plan, to.file), out);
}

ad_status ad_plan_picture(const ad_recipe *recipe, const ad_plan_options *options, const char *command, char **out) {
  AD_NEED(recipe, out);
  json_t *plan;
  AD_TRY(ad_plan_draw_schedule(recipe, options, command, out));
  if (*out) return AD_OK;
  AD_TRY(ad_plan_document(recipe, options, &plan));
  ad_status status = picture_of(recipe, command, plan, out);
  json_decref(plan);
  return status;
}
