/* Tests that a picture encoder and a decoder that reads from it train as they do in PyTorch (generate_ocr.py). A bridge
 * joins them in each direction: fan-in, fan-out, equal and ragged, with the sequence of either sharded. */
#include <unistd.h>
#include "addend/data.h"
#include "ocr/ocr.h"
#include "training.h"
#include "program/program.h"
#include "step/run.h"

#define SHARDS_SEQUENCE "model.sequence_parallel=true"

static const world on_one_rank[] = {{1, {"mesh.encoder=dp=1", "mesh.model=dp=1"}}, {0}};
static const world fan_in[] = {
    {2, {"mesh.encoder=dp=2", "mesh.model=cp=2"}},
    {4, {"mesh.encoder=dp=4", "mesh.model=dp=2 tp=2", "shard.zero=3"}},
    {8, {"mesh.encoder=dp=4 tp=2", "mesh.model=dp=2 cp=2 tp=2", "shard.zero=0"}},
    {8, {"mesh.encoder=dp=4 tp=2", "mesh.model=cp=2 tp=2 dp=2", "shard.zero=3"}},
    {4, {"mesh.encoder=dp=4", "mesh.model=dp=2 tp=2", "shard.zero=3", SHARDS_SEQUENCE}},
    {8, {"mesh.encoder=dp=4 tp=2", "mesh.model=dp=2 cp=2 tp=2", "shard.zero=0", SHARDS_SEQUENCE}},
    {0},
};
static const world fan_out[] = {
    {2, {"mesh.encoder=tp=2", "mesh.model=dp=2"}},
    {8, {"mesh.encoder=dp=2 tp=4", "mesh.model=dp=4 cp=2", "shard.zero=3"}},
    {8, {"mesh.encoder=dp=2 tp=4", "mesh.model=dp=4 tp=2", SHARDS_SEQUENCE}},
    {0},
};
static const world equal[] = {
    {4, {"mesh.encoder=dp=2 tp=2", "mesh.model=dp=2 tp=2", "shard.zero=3"}},
    {4, {"mesh.encoder=dp=2 tp=2", "mesh.model=dp=2 cp=2", "shard.zero=0"}},
    {0},
};
// Worlds in which the encoder's patches are sharded too.
static const world both_sharded[] = {
    {3, {"mesh.encoder=cp=3", "mesh.model=cp=3"}},
    {4, {"mesh.encoder=dp=2 cp=2", "mesh.model=cp=2 tp=2", "shard.zero=0"}},
    {4, {"mesh.encoder=dp=2 cp=2", "mesh.model=cp=2 tp=2", "shard.zero=3", SHARDS_SEQUENCE}},
    {4, {"mesh.encoder=cp=2 tp=2", "mesh.model=dp=2 cp=2", "shard.zero=3"}},
    {0},
};
static const world ragged[] = {
    {3, {"mesh.encoder=dp=3", "mesh.model=cp=3", "shard.zero=3"}},
    {4, {"mesh.encoder=dp=4", "mesh.model=dp=2 tp=2"}},
    {4, {"mesh.encoder=dp=4", "mesh.model=dp=2 tp=2", SHARDS_SEQUENCE}},
    {6, {"mesh.encoder=dp=3 tp=2", "mesh.model=dp=2 cp=3", "shard.zero=0"}},
    {6, {"mesh.encoder=dp=2 cp=3", "mesh.model=tp=2 dp=3", "shard.zero=3"}},
    {0},
};

/* ---- the pictures, which both sides were given; the fixtures have their checksums ---- */

static const char *const names[] = {"ocr-plain", "ocr-everything", "ocr-ragged"};

static const ad_ocr_options *options_of(const job *j) { return j->recipe->options; }

static const void *row_of(const job *j, const char *name, size_t row, size_t bytes) {
  const ad_safetensor *tensor = ad_safetensors_find(j->expected, name);
  assert_true(tensor && tensor->bytes >= (row + 1) * bytes);
  return (const char *)tensor->data + row * bytes;
}

static void compare_pictures(const job *j, ad_line_data *lines, int validation, size_t rows, const char *name) {
  const ad_line_options *options = &options_of(j)->lines;
  size_t bytes = (size_t)(options->height * options->width) * sizeof(float);
  uint64_t checksum;
  uint8_t *characters = malloc((size_t)options->chars);
  float *picture = malloc(bytes);
  assert_true(characters && picture);
  for (size_t row = 0; row < rows; row++) {
    ad_line line;
    must(ad_line_data_draw(lines, (uint64_t)j->recipe->train.seed, validation, row, &line, characters, picture));
    checksum = ad_checksum(picture, bytes, 0);
    if (memcmp(&checksum, row_of(j, name, row, sizeof checksum), sizeof checksum) != 0)
      fail_msg(
          "%s: line %zu is drawn otherwise than for PyTorch: another version of FreeType or of the font? Then "
          "generate_ocr.py makes the fixture anew",
          j->name, row);
  }
  free(characters);
  free(picture);
}

static void use_pictures(job *j) {
  ad_line_data *lines;
  size_t batch = (size_t)j->recipe->train.global_batch;
  must(ad_line_data_open(&options_of(j)->lines, &lines));
  compare_pictures(j, lines, 0, STEPS * batch, "pictures");
  if (options_of(j)->lines.validation > 0) compare_pictures(j, lines, 1, batch, "validation.pictures");
  ad_line_data_close(lines);
}

static void pictures_are_those_that_pytorch_was_given(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], on_one_rank, use_pictures);
}

/* ---- tokens and targets of the batch ---- */

/* Compares the tokens and targets of a step; microbatches have consecutive rows. */
static void compare_batch(const job *j, const ad_program *program, int64_t step) {
  size_t row = (size_t)(step * j->recipe->train.global_batch), line = (size_t)options_of(j)->decoder.data.seq;
  const ad_array *array;
  char name[64];
  for (size_t i = 0; (array = ad_ocr()->data.batch_array(ad_program_own(program), i, name, sizeof name)); i++) {
    const char *kind = strrchr(name, '.') + 1;
    if (strcmp(kind, "tokens") && strcmp(kind, "targets")) continue;
    for (int64_t k = 0; k < array->local.dim[0]; k++)
      CHECK(!memcmp((const int32_t *)array->data + (size_t)k * line,
                    row_of(j, kind, row + (size_t)k, line * sizeof(int32_t)), line * sizeof(int32_t)));
    if (!strcmp(kind, "targets")) row += (size_t)array->local.dim[0];
  }
}

static int read_batches(ad_comm *comm, void *context) {
  const job *j = context;
  ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
  ad_run *run;
  double loss;
  CHECK_OK(ad_run_create(comm, j->recipe, &options, &run));
  for (int step = 0; step < STEPS; step++) {
    CHECK_OK(ad_run_loss(run, step, AD_TRAINED_ON, &loss));
    compare_batch(j, ad_run_program(run), step);
  }
  ad_run_destroy(run);
  return 0;
}

static void use_batches(job *j) { run_ranks(1, read_batches, j); }

static void tokens_and_targets_are_those_of_the_documented_rule(void **state) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) with_fixture(names[i], on_one_rank, use_batches);
}

/* ---- training ---- */

static void train_everywhere(const char *name) {
  train_on(name, on_one_rank);
  train_on(name, fan_in);
  train_on(name, fan_out);
  train_on(name, equal);
  train_on(name, both_sharded);
}

static void a_reader_with_every_default_trains_as_in_pytorch(void **state) { train_everywhere("ocr-plain"); }
static void a_reader_with_every_key_trains_as_in_pytorch(void **state) { train_everywhere("ocr-everything"); }
static void a_reader_of_ragged_batches_trains_as_in_pytorch(void **state) {
  train_on("ocr-ragged", on_one_rank);
  train_on("ocr-ragged", ragged);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pictures_are_those_that_pytorch_was_given),
      cmocka_unit_test(tokens_and_targets_are_those_of_the_documented_rule),
      cmocka_unit_test(a_reader_with_every_default_trains_as_in_pytorch),
      cmocka_unit_test(a_reader_with_every_key_trains_as_in_pytorch),
      cmocka_unit_test(a_reader_of_ragged_batches_trains_as_in_pytorch),
  };
  if (chdir(AD_TEST_SOURCE)) return 1;  // recipes name their files relative to this folder
  return cmocka_run_group_tests(tests, NULL, NULL);
}
