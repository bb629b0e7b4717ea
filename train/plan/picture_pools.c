/* Draws pools side by side and, below them, what each bridge sends from one pool to another and back. */
#include "base/text.h"
#include "plan/picture.h"

enum { BOX_WIDTH = 260, BOX_HEIGHT = 66, GAP_LEAST = 16, WAY_HEIGHT = 30 };

static size_t pool_count(const json_t *plan) { return json_array_size(json_object_get(plan, "pools")); }

static int box_width(const json_t *plan) {
  int pools = (int)pool_count(plan), room = (PICTURE_WIDTH - 2 * PICTURE_MARGIN - (pools - 1) * GAP_LEAST) / pools;
  return room < BOX_WIDTH ? room : BOX_WIDTH;
}

/* Returns the left edge of a pool's box. The boxes are spread from margin to margin. */
static int left_of(const json_t *plan, json_int_t pool) {
  int room = PICTURE_WIDTH - 2 * PICTURE_MARGIN - box_width(plan);
  return PICTURE_MARGIN + (int)(room * pool / (json_int_t)(pool_count(plan) - 1));
}

static int middle_of(const json_t *plan, json_int_t pool) { return left_of(plan, pool) + box_width(plan) / 2; }

/* Writes what the modules of the pool have at `key` ("encoder", "dp=2 tp=2"), each value once, and returns buffer. */
static const char *of_modules(const json_t *plan, json_int_t pool, const char *key, char *buffer, size_t size) {
  const json_t *module;
  size_t i;
  ad_text text = ad_text_on(buffer, size);
  json_array_foreach(json_object_get(plan, "modules"), i, module) if (ad_integer_of(module, "pool") == pool)
      ad_text_add(&text, "%s%s", text.used ? ", " : "", ad_text_of(module, key));
  return buffer;
}

static void draw_pool(FILE *file, const json_t *plan, json_int_t number, int y) {
  const json_t *pool = json_array_get(json_object_get(plan, "pools"), (size_t)number);
  json_int_t first_rank = ad_integer_of(pool, "first_rank"), ranks = ad_integer_of(pool, "ranks");
  char text[128], class[16], first[AD_GROUPED_MAX], last[AD_GROUPED_MAX];
  int x = left_of(plan, number), middle = middle_of(plan, number);
  snprintf(class, sizeof class, "cell g%d", (int)(number % 8));
  ad_svg_box(file, x, y, box_width(plan), BOX_HEIGHT, class);
  ad_svg_text(file, middle, y + 20, "head middle", "%s", of_modules(plan, number, "name", text, sizeof text));
  ad_grouped(first_rank, first);
  ad_grouped(first_rank + ranks - 1, last);
  if (ranks == 1)
    ad_svg_text(file, middle, y + 38, "small middle", "rank %s", first);
  else
    ad_svg_text(file, middle, y + 38, "small middle", "ranks %s to %s", first, last);
  ad_svg_text(file, middle, y + 54, "small middle", "%s", of_modules(plan, number, "mesh", text, sizeof text));
}

static void draw_way(FILE *file, const json_t *plan, const json_t *bridge, int is_back, int y) {
  const json_t *way = json_object_get(bridge, is_back ? "backward" : "forward");
  int from = middle_of(plan, ad_integer_of(json_object_get(bridge, is_back ? "to" : "from"), "pool"));
  int to = middle_of(plan, ad_integer_of(json_object_get(bridge, is_back ? "from" : "to"), "pool"));
  json_int_t times = ad_integer_of(bridge, "times");
  char bytes[AD_GROUPED_MAX];
  ad_svg_arrow(file, from, y, to, y, "arrow");
  ad_svg_text(file, (from + to) / 2, y - 5, "label middle", "%s%s: %s B, %lld time%s a step",
              is_back ? "gradient of " : "", ad_text_of(bridge, "site"), ad_grouped(ad_integer_of(way, "bytes"), bytes),
              (long long)times, times == 1 ? "" : "s");
}

static int is_between_pools(const json_t *bridge) {
  return ad_integer_of(json_object_get(bridge, "from"), "pool") != ad_integer_of(json_object_get(bridge, "to"), "pool");
}

static int ways_height(const json_t *plan) {
  const json_t *bridge;
  size_t i;
  int height = WAY_HEIGHT / 2;
  json_array_foreach(json_object_get(plan, "bridges"), i, bridge) height += is_between_pools(bridge) * 2 * WAY_HEIGHT;
  return height;
}

void ad_picture_pools(FILE *file, const json_t *plan, int *y) {
  const json_t *bridge;
  size_t i;
  if (pool_count(plan) < 2) return;
  *y += 14;
  for (i = 0; i < pool_count(plan); i++) {
    ad_svg_box(file, middle_of(plan, (json_int_t)i) - 1, *y, 2, BOX_HEIGHT + ways_height(plan), "card");
    draw_pool(file, plan, (json_int_t)i, *y);
  }
  *y += BOX_HEIGHT;
  json_array_foreach(json_object_get(plan, "bridges"), i, bridge) {
    for (int is_back = 0; is_back < 2 && is_between_pools(bridge); is_back++)
      draw_way(file, plan, bridge, is_back, *y += WAY_HEIGHT);
  }
  *y += WAY_HEIGHT / 2 + 10;
}
