/* Tests where the tensors of a pretrained model hold each parameter's values: any part of any parameter of the
 * committed models is read, compared element by element, and written back bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/safetensors.h"
#include "architecture/folder.h"
#include "architecture/tensors.h"
#include "architecture/transpose.h"
#include "base/memory.h"
#include "says.h"

#define MODELS AD_TEST_SOURCE "/train/tests/architecture/models/"

typedef struct param {
  const char *name, *tensor; /* tensor: of expert 2, if the parameter has experts */
  ad_shape shape;
  int transposed;
} param;

static const param llama[] = {{"embedding.weight", "model.embed_tokens.weight", {2, {256, 6}}, 0},
                              {"blocks.0.norm.attn", "model.layers.0.input_layernorm.weight", {1, {6}}, 0},
                              {"blocks.0.norm.mlp", "model.layers.0.post_attention_layernorm.weight", {1, {6}}, 0},
                              {"blocks.0.attn.wq", "model.layers.0.self_attn.q_proj.weight", {2, {6, 12}}, 1},
                              {"blocks.0.attn.wk", "model.layers.0.self_attn.k_proj.weight", {2, {6, 4}}, 1},
                              {"blocks.0.attn.wv", "model.layers.0.self_attn.v_proj.weight", {2, {6, 4}}, 1},
                              {"blocks.0.attn.wo", "model.layers.0.self_attn.o_proj.weight", {2, {12, 6}}, 1},
                              {"blocks.0.attn.wq_bias", "model.layers.0.self_attn.q_proj.bias", {1, {12}}, 0},
                              {"blocks.0.attn.wk_bias", "model.layers.0.self_attn.k_proj.bias", {1, {4}}, 0},
                              {"blocks.0.attn.wv_bias", "model.layers.0.self_attn.v_proj.bias", {1, {4}}, 0},
                              {"blocks.0.attn.wo_bias", "model.layers.0.self_attn.o_proj.bias", {1, {6}}, 0},
                              {"blocks.0.mlp.gate", "model.layers.0.mlp.gate_proj.weight", {2, {6, 5}}, 1},
                              {"blocks.0.mlp.up", "model.layers.0.mlp.up_proj.weight", {2, {6, 5}}, 1},
                              {"blocks.0.mlp.down", "model.layers.0.mlp.down_proj.weight", {2, {5, 6}}, 1},
                              {"blocks.0.mlp.gate_bias", "model.layers.0.mlp.gate_proj.bias", {1, {5}}, 0},
                              {"blocks.0.mlp.up_bias", "model.layers.0.mlp.up_proj.bias", {1, {5}}, 0},
                              {"blocks.0.mlp.down_bias", "model.layers.0.mlp.down_proj.bias", {1, {6}}, 0},
                              {"final.norm.weight", "model.norm.weight", {1, {6}}, 0},
                              {0}};
static const param mixtral[] = {
    {"blocks.0.moe.router", "model.layers.0.block_sparse_moe.gate.weight", {2, {6, 3}}, 1},
    {"blocks.0.moe.gate", "model.layers.0.block_sparse_moe.experts.2.w1.weight", {3, {3, 6, 5}}, 1},
    {"blocks.0.moe.up", "model.layers.0.block_sparse_moe.experts.2.w3.weight", {3, {3, 6, 5}}, 1},
    {"blocks.0.moe.down", "model.layers.0.block_sparse_moe.experts.2.w2.weight", {3, {3, 5, 6}}, 1},
    {0}};
static const param qwen3_moe[] = {
    {"blocks.0.moe.router", "model.layers.0.mlp.gate.weight", {2, {6, 3}}, 1},
    {"blocks.0.moe.gate", "model.layers.0.mlp.experts.2.gate_proj.weight", {3, {3, 6, 4}}, 1},
    {"blocks.0.moe.up", "model.layers.0.mlp.experts.2.up_proj.weight", {3, {3, 6, 4}}, 1},
    {"blocks.0.moe.down", "model.layers.0.mlp.experts.2.down_proj.weight", {3, {3, 4, 6}}, 1},
    {"blocks.0.attn.q_norm", "model.layers.0.self_attn.q_norm.weight", {1, {4}}, 0},
    {"blocks.0.attn.k_norm", "model.layers.0.self_attn.k_norm.weight", {1, {4}}, 0},
    {"head.weight", "lm_head.weight", {2, {6, 256}}, 1},
    {0}};
static const struct {
  const char *folder;
  const ad_architecture *architecture;
  const param *params;
} models[] = {{"llama", &ad_llama, llama}, {"mixtral", &ad_mixtral, mixtral}, {"qwen3_moe", &ad_qwen3_moe, qwen3_moe}};

/* Element [i, j] of the full parameter, read by itself as bf16; [j] of a vector, [e, i, j] of experts. */
static uint16_t element(const ad_weights *weights, const ad_tensor_source *source, int transposed, int64_t e, int64_t i,
                        int64_t j) {
  char name[AD_TENSOR_NAME_SIZE];
  uint16_t value;
  const ad_safetensor *tensor = ad_weights_find(weights, ad_tensor_source_name(source, e, name));
  assert_non_null(tensor);
  int64_t columns = tensor->shape.dim[tensor->shape.ndim - 1];
  memcpy(&value, (const char *)tensor->data + sizeof value * (size_t)(transposed ? j * columns + i : i * columns + j),
         sizeof value);
  return value;
}

/* The spans of a dimension; a dimension that does not exist has the one index 0. */
static void spans_of(const ad_part *part, int dim, const ad_span **spans, int *count) {
  static const ad_span one = {0, 1};
  *spans = dim < 0 ? &one : part->span[dim];
  *count = dim < 0 ? 1 : part->count[dim];
}

#define FOR_SPANS(part, dim, index)                               \
  const ad_span *spans_##index;                                   \
  int count_##index;                                              \
  spans_of(part, dim, &spans_##index, &count_##index);            \
  for (int s_##index = 0; s_##index < count_##index; s_##index++) \
    for (int64_t index = spans_##index[s_##index].first;          \
         index < spans_##index[s_##index].first + spans_##index[s_##index].count; index++)

static void holds_part(const ad_weights *weights, const ad_tensor_source *source, const param *p, const ad_part *part) {
  uint16_t *read;
  float *wide;
  size_t at = 0, numel = ad_part_numel(part);
  assert_int_equal(ad_new(numel, &read), AD_OK);
  assert_int_equal(ad_new(numel, &wide), AD_OK);
  assert_int_equal(ad_tensor_source_read(source, weights, part, AD_BF16, read), AD_OK);
  assert_int_equal(ad_tensor_source_read(source, weights, part, AD_F32, wide), AD_OK);
  FOR_SPANS(part, part->ndim - 3, e) {
    FOR_SPANS(part, part->ndim - 2, i) {
      FOR_SPANS(part, part->ndim - 1, j) {
        uint16_t value = element(weights, source, p->transposed, e, i, j);
        uint32_t bits = (uint32_t)value << 16;
        assert_int_equal(read[at], value);
        assert_memory_equal(&wide[at++], &bits, sizeof bits);
      }
    }
  }
  assert_int_equal(at, numel);
  ad_release(read);
  ad_release(wide);
}

/* Sets the part along a dimension: the whole, a piece from the middle, or two pieces with a gap. */
static void set_spans(ad_part *part, int dim, int64_t size, int how) {
  part->count[dim] = how == 2 && size > 2 ? 2 : 1;
  part->span[dim][0] = how == 1 ? (ad_span){size / 3, size - size / 3 - (size > 3)} : (ad_span){0, how ? 1 : size};
  if (part->count[dim] == 2) part->span[dim][1] = (ad_span){2, size - 2};
}

static void holds_all_parts(const ad_weights *weights, const ad_tensor_source *source, const param *p) {
  for (int how = 0; how < 27; how++) {
    ad_part part = {.ndim = p->shape.ndim};
    int rest = how;
    for (int dim = 0; dim < part.ndim; dim++, rest /= 3) set_spans(&part, dim, p->shape.dim[dim], rest % 3);
    if (!rest) holds_part(weights, source, p, &part);
  }
}

static void comes_back(const ad_weights *weights, const ad_tensor_source *source, const param *p) {
  ad_part full = {.ndim = p->shape.ndim};
  char name[AD_TENSOR_NAME_SIZE];
  float *param_values;
  uint16_t *written;
  for (int dim = 0; dim < full.ndim; dim++) set_spans(&full, dim, p->shape.dim[dim], 0);
  assert_int_equal(ad_new(ad_part_numel(&full), &param_values), AD_OK);
  assert_int_equal(ad_new(ad_part_numel(&full), &written), AD_OK);
  assert_int_equal(ad_tensor_source_read(source, weights, &full, AD_F32, param_values), AD_OK);
  for (int64_t i = 0; i < source->count; i++) {
    const ad_safetensor *tensor = ad_weights_find(weights, ad_tensor_source_name(source, i, name));
    ad_tensor_source_write(source, i, param_values, AD_F32, AD_BF16, written);
    assert_memory_equal(written, tensor->data, tensor->bytes);
  }
  ad_release(param_values);
  ad_release(written);
}

static void every_part_of_every_parameter_is_found(void **state) {
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    char folder[512], name[AD_TENSOR_NAME_SIZE];
    ad_weights *weights;
    snprintf(folder, sizeof folder, MODELS "%s", models[m].folder);
    assert_int_equal(ad_pretrained_weights(folder, &weights), AD_OK);
    for (const param *p = models[m].params; p->name; p++) {
      ad_tensor_source source;
      assert_true(ad_tensor_source_find(models[m].architecture, p->name, &p->shape, &source));
      assert_string_equal(ad_tensor_source_name(&source, 2, name), p->tensor);
      assert_int_equal(source.count, p->shape.ndim == 3 ? p->shape.dim[0] : 1);
      assert_true(ad_shape_equal(&source.shape, &ad_weights_find(weights, name)->shape));
      holds_all_parts(weights, &source, p);
      comes_back(weights, &source, p);
    }
    ad_weights_close(weights);
  }
}

static void other_names_are_no_parameters(void **state) {
  static const char *const names[] = {"blocks.x.attn.wq", "blocks..attn.wq",     "blocks.1.attn.wqs", "blocks.1.attn",
                                      "head.weights",     "blocks.0.moe.router", "blocks.1x.attn.wq", "lm_head.weight"};
  ad_shape shape = {2, {3, 4}};
  ad_tensor_source source;
  char name[AD_TENSOR_NAME_SIZE];
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    assert_false(ad_tensor_source_find(&ad_llama, names[i], &shape, &source));
  assert_true(ad_tensor_source_find(&ad_llama, "blocks.12.attn.wq", &shape, &source));
  assert_string_equal(ad_tensor_source_name(&source, 0, name), "model.layers.12.self_attn.q_proj.weight");
  assert_true(ad_tensor_source_find(NULL, "any.@name", &shape, &source));
  assert_string_equal(ad_tensor_source_name(&source, 0, name), "any.@name");
  assert_true(ad_shape_equal(&source.shape, &shape));
}

/* ---- tensors that no parameter takes ---- */

/* Writes embedding and head, opens the files again, and says whether the head is idle. `differs`: the element of the
 * head that differs from the embedding's; -1: none does. */
static int head_is_idle(const char *table, ad_dtype dtype, int64_t rows, int differs) {
  enum { ELEMENTS = 24 };
  uint16_t values[2][ELEMENTS];
  char path[] = "/tmp/addend-tensors-XXXXXX";
  ad_safetensors_writer *writer;
  ad_weights *weights;
  ad_safetensor list[] = {{.name = table, .dtype = AD_BF16, .shape = {2, {6, 4}}},
                          {.name = "lm_head.weight", .dtype = dtype, .shape = {2, {rows, 4}}}};
  for (int i = 0; i < ELEMENTS; i++) {
    values[0][i] = (uint16_t)(0x3f80 + i);
    values[1][i] = (uint16_t)(values[0][i] + (i == differs));
  }
  close(mkstemp(path));
  assert_int_equal(ad_safetensors_create(path, list, 2, NULL, &writer), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, values[0]), AD_OK);
  assert_int_equal(ad_safetensors_add(writer, values[1]), AD_OK);
  assert_int_equal(ad_safetensors_finish(writer, NULL, NULL), AD_OK);
  ad_safetensors_writer_destroy(writer);
  assert_int_equal(ad_weights_open(path, &weights), AD_OK);
  int idle = ad_tensor_is_idle(&ad_llama, weights, ad_weights_find(weights, "lm_head.weight"));
  assert_int_equal(ad_tensor_is_idle(&ad_llama, weights, ad_weights_find(weights, table)), 0);
  assert_int_equal(ad_tensor_is_idle(NULL, weights, ad_weights_find(weights, "lm_head.weight")), 0);
  ad_weights_close(weights);
  unlink(path);
  return idle;
}

static void a_head_is_idle_if_it_repeats_the_embedding_bit_for_bit(void **state) {
  const char *table = "model.embed_tokens.weight";
  assert_int_equal(head_is_idle(table, AD_BF16, 6, -1), 1);
  for (int i = 0; i < 24; i++) assert_int_equal(head_is_idle(table, AD_BF16, 6, i), 0);
  assert_int_equal(head_is_idle(table, AD_F16, 6, -1), 0);
  assert_int_equal(head_is_idle(table, AD_BF16, 5, -1), 0);
  assert_int_equal(head_is_idle("model.embed_tokens.weights", AD_BF16, 6, -1), 0);
}

/* Older files hold the rotary frequencies of each layer, which follow from the recipe. */
static void stored_frequencies_are_idle(void **state) {
  static const char *const names[] = {"model.layers.0.self_attn.rotary_emb.inv_freq", "a.rotary_emb.inv_freqs",
                                      "rotary_emb.inv_freq"};
  for (int i = 0; i < 3; i++) {
    const ad_safetensor tensor = {.name = names[i]};
    assert_int_equal(ad_tensor_is_idle(&ad_llama, NULL, &tensor), i == 0);
    assert_int_equal(ad_tensor_is_idle(NULL, NULL, &tensor), 0);
  }
}

static void a_tensor_that_is_missing_in_a_file_is_named(void **state) {
  ad_weights *weights;
  ad_tensor_source source;
  float read[4];
  const ad_shape shape = {2, {2, 2}};
  const ad_part part = {.ndim = 2, .count = {1, 1}, .span = {{{0, 2}}, {{0, 2}}}}, none = {.ndim = 2, .count = {1, 0}};
  assert_int_equal(ad_pretrained_weights(MODELS "llama", &weights), AD_OK);
  assert_true(ad_tensor_source_find(&ad_llama, "blocks.7.attn.wq", &shape, &source));
  assert_int_equal(ad_tensor_source_read(&source, weights, &part, AD_F32, read), AD_INVALID);
  assert_facts(ad_last_error(), MODELS "llama/model.safetensors", "model.layers.7.self_attn.q_proj.weight");
  assert_int_equal(ad_tensor_source_read(&source, weights, &none, AD_F32, read), AD_OK);
  ad_weights_close(weights);
}

/* ---- transposing blocks larger than a tile ---- */

static void transposes(int64_t rows, int64_t columns, ad_dtype dtype) {
  size_t size = ad_dtype_size(dtype), count = (size_t)(rows * columns);
  char *from, *to;
  assert_int_equal(ad_new(count * size + 1, &from), AD_OK);
  assert_int_equal(ad_new((count + (size_t)columns * 3) * size, &to), AD_OK);
  char *shifted = from + 1; /* data in a file need not be aligned */
  for (size_t i = 0; i < count; i++) {
    double value = (double)(i % 251);
    ad_cast(to, dtype, &value, AD_F64, 1);
    memcpy(shifted + i * size, to, size);
  }
  ad_transposed_block block = {shifted, columns, to, rows + 3, rows, columns};
  ad_transpose_block(&block, dtype, dtype);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      assert_memory_equal(to + (size_t)(j * (rows + 3) + i) * size, shifted + (size_t)(i * columns + j) * size, size);
  ad_release(from);
  ad_release(to);
}

static void blocks_of_any_size_and_width_are_transposed(void **state) {
  static const int64_t sizes[] = {1, 3, 63, 64, 65, 130};
  static const ad_dtype dtypes[] = {AD_F64, AD_F32, AD_BF16, AD_F16};
  for (int i = 0; i < 6; i++)
    for (int j = 0; j < 6; j++)
      for (int d = 0; d < 4; d++) transposes(sizes[i], sizes[j], dtypes[d]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_part_of_every_parameter_is_found),
                                     cmocka_unit_test(other_names_are_no_parameters),
                                     cmocka_unit_test(a_head_is_idle_if_it_repeats_the_embedding_bit_for_bit),
                                     cmocka_unit_test(stored_frequencies_are_idle),
                                     cmocka_unit_test(a_tensor_that_is_missing_in_a_file_is_named),
                                     cmocka_unit_test(blocks_of_any_size_and_width_are_transposed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
