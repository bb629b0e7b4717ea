/* A bridge moves values between two meshes, here two meshes of the same ranks, and works on plain buffers without a
 * tape. The encoder's output, sharded over 4 ranks of dp, goes to a model that shards the batch over 2 ranks of dp and
 * each sequence over 2 ranks of cp. In backward each cp rank has a gradient that is zero outside its own positions; the
 * bridge returns the sum of these gradients to the encoder. Starts 8 ranks. */
#include <math.h>
#include <stdio.h>
#include "addend/bridge.h"

enum { RANKS = 8, BATCH = 8, SEQ = 6, WIDTH = 3 };

/* Element i of the global batch, and element i of its gradient. */
static double image(int64_t i) { return sin((double)i); }
static double gradient(int64_t i) { return cos((double)i); }

/* The two meshes, and this rank's parts of the batch and of its gradient on each mesh: `made` by the encoder, `read` by
 * the model. */
typedef struct sides {
  ad_mesh *encoder, *model;
  ad_bridge *bridge;
  ad_array made, read, made_gradient, read_gradient;
} sides;

static ad_status create_array(ad_comm *comm, ad_array *array) {
  return ad_array_create(comm, AD_F64, &array->shape, &array->layout, array);
}

/* Makes the bridge and its four arrays. `images` is the layout of the encoder's output on the encoder's mesh. */
static ad_status create_sides(ad_comm *comm, const char *images, sides *s) {
  ad_layout from, to;
  ad_shape shape = {3, {BATCH, SEQ, WIDTH}};
  AD_TRY(ad_mesh_create("dp=4 tp=2", &s->encoder));
  AD_TRY(ad_mesh_create("dp=2 cp=2 tp=2", &s->model));
  AD_TRY(ad_layout_parse(s->encoder, images, &from));
  // R on cp: each rank of cp uses a part of the full sequence
  AD_TRY(ad_layout_parse(s->model, "dp=S0 cp=R tp=I", &to));
  AD_TRY(ad_bridge_create(comm, &from, &to, NULL, &s->bridge));
  AD_TRY(ad_bridge_describe(s->bridge, AD_F64, &shape, AD_FORWARD, &s->made, &s->read));
  AD_TRY(ad_bridge_describe(s->bridge, AD_F64, &shape, AD_BACKWARD, &s->made_gradient, &s->read_gradient));
  AD_TRY(create_array(comm, &s->made));
  AD_TRY(create_array(comm, &s->read));
  AD_TRY(create_array(comm, &s->made_gradient));
  return create_array(comm, &s->read_gradient);
}

static void part(sides *s) {
  ad_bridge_destroy(s->bridge);
  ad_mesh_destroy(s->encoder);
  ad_mesh_destroy(s->model);  // closing the comm frees the arrays
}

/* Returns the index in the global batch of the first element that `rank` holds. */
static int64_t first_of(const ad_array *array, int64_t rank) {
  ad_span rows;
  ad_layout_spans(&array->layout, 0, BATCH, rank, &rows, 1);
  return rows.first * SEQ * WIDTH;
}

static void fill_array(ad_array *array, int64_t rank, double (*value)(int64_t i)) {
  int64_t first = first_of(array, rank);
  for (size_t i = 0; i < ad_array_numel(array); i++) ((double *)array->data)[i] = value(first + (int64_t)i);
}

/* Sets the gradient to zero outside this rank's own positions, as a model with a sharded sequence leaves it. */
static void keep_own_positions(const sides *s, int64_t rank) {
  int64_t cp = ad_mesh_axis_size(s->model, AD_CP), own = ad_mesh_position(s->model, rank, AD_CP);
  for (size_t i = 0; i < ad_array_numel(&s->read_gradient); i++)
    if ((int64_t)i / WIDTH % SEQ * cp / SEQ != own) ((double *)s->read_gradient.data)[i] = 0;
}

/* Returns the largest difference between an element of the array and the value that the element should have. */
static double worst_of(const ad_array *array, int64_t rank, double (*wanted)(int64_t i)) {
  double worst = 0;
  int64_t first = first_of(array, rank);
  for (size_t i = 0; i < ad_array_numel(array); i++)
    worst = fmax(worst, fabs(((const double *)array->data)[i] - wanted(first + (int64_t)i)));
  return worst;
}

static ad_status there_and_back(ad_comm *comm, sides *s, double *worst) {
  int64_t rank = ad_comm_rank(comm);
  AD_TRY(create_sides(comm, "dp=S0 tp=I", s));
  fill_array(&s->made, rank, image);
  AD_TRY(ad_bridge_forward(s->bridge, &s->made, &s->read));
  *worst = worst_of(&s->read, rank, image);
  fill_array(&s->read_gradient, rank, gradient);
  keep_own_positions(s, rank);
  // Images are R on cp, so their gradient is Partial (P) there: the bridge sums it over cp.
  AD_TRY(ad_bridge_backward(s->bridge, &s->read_gradient, &s->made_gradient));
  *worst = fmax(*worst, worst_of(&s->made_gradient, rank, gradient));
  return AD_OK;
}

static int on_each_rank(ad_comm *comm, void *context) {
  sides s = {0};
  double worst = 0;
  ad_status status = there_and_back(comm, &s, &worst);
  if (status) fprintf(stderr, "rank %d failed: %s\n", (int)ad_comm_rank(comm), ad_last_error());
  if (!status && !ad_comm_rank(comm)) {
    char from[96], to[96];
    ad_layout given = ad_bridge_from(s.bridge), taken = ad_bridge_to(s.bridge);
    printf("rank 0 gives %d rows (%s), reads %d (%s), and gets the gradient of %d: %s\n", (int)s.made.local.dim[0],
           ad_layout_print(&given, from, sizeof from), (int)s.read.local.dim[0], ad_layout_print(&taken, to, sizeof to),
           (int)s.made_gradient.local.dim[0], worst < 1e-12 ? "the whole sum" : "WRONG");
  }
  part(&s);
  return status || worst >= 1e-12;
}

int main(void) {
  ad_launch_options options = {.size = sizeof options, .ranks = RANKS, .function = on_each_rank};
  ad_launch_result result = {.size = sizeof result};
  sides s = {0};
  ad_comm *dry;  // backend dry moves no data: checking types needs no other rank
  if (ad_comm_open_dry(0, RANKS, &dry)) return 1;
  // the bug: R on tp would count the gradient of each replica
  if (create_sides(dry, "dp=S0 tp=R", &s) != AD_TYPE) return 1;
  printf("refused: %s\n", ad_last_error());
  part(&s);
  ad_comm_close(dry);
  fflush(stdout);
  return ad_launch(&options, &result) ? fprintf(stderr, "%s\n", ad_last_error()), 1 : 0;
}
