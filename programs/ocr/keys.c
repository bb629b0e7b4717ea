/* The recipe keys of ocr, and the checks of their values against each other and the meshes. */
#include "ocr/keys.h"

#include <stdio.h>
#include "addend/data.h"
#include "ocr/ocr.h"
#include "decoder/text_keys.h"

#define AT(field) offsetof(ad_ocr_options, field)

const ad_key ad_ocr_keys[AD_OCR_KEY_COUNT] = {
    AD_DECODER_KEYS(ad_ocr_options, decoder, ad_bias_words),
    {"model.d_hidden", AD_KEY_INTEGER, .offset = AT(d_hidden), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the MLP; 0: 8/3 d_model, rounded up to a multiple of 16"},
    {"model.encoder_layers", AD_KEY_INTEGER, .offset = AT(encoder_layers), .least = 1, .most = 4096,
     .help = "blocks of the encoder"},
    {"model.encoder_d_model", AD_KEY_INTEGER, .offset = AT(encoder_d_model), .least = 1, .most = 1 << 20,
     .help = "width of a patch in the encoder"},
    {"model.encoder_heads", AD_KEY_INTEGER, .offset = AT(encoder_heads), .least = 1, .most = 1 << 20,
     .help = "attention heads of the encoder; they divide encoder_d_model into even parts"},
    {"model.patch", AD_KEY_INTEGER, .offset = AT(patch), .least = 1, .most = 1 << 12,
     .help = "pixels that a patch is wide; a divisor of data.width"},
    {"model.ragged", AD_KEY_BOOLEAN, .offset = AT(ragged), .fallback = "false",
     .help = "the two modules may shard the batch into parts that do not lie inside each other"},
    {"data.text", AD_KEY_TEXT, .list = 1, .offset = AT(lines.text), .second = AT(lines.text_count),
     .help = "files, or folders of files"},
    {"data.validation", AD_KEY_NUMBER, .offset = AT(lines.validation), .least = 0, .most = 1, .open_most = 1,
     .fallback = "0", .help = "fraction at the end of every file that is kept for validation"},
    {"data.fonts", AD_KEY_TEXT, .list = 1, .offset = AT(lines.fonts), .second = AT(lines.font_count),
     .help = "files of fonts; each line is drawn in one of them"},
    {"data.validation_font", AD_KEY_TEXT, .offset = AT(lines.validation_font), .fallback = "",
     .help = "one more font, for lines of the validation part alone"},
    {"data.chars", AD_KEY_INTEGER, .offset = AT(lines.chars), .least = 1, .most = 1 << 12,
     .help = "characters of a line at most"},
    {"data.height", AD_KEY_INTEGER, .offset = AT(lines.height), .least = 1, .most = 1 << 12,
     .help = "pixels of a picture"},
    {"data.width", AD_KEY_INTEGER, .offset = AT(lines.width), .least = 1, .most = 1 << 16,
     .help = "pixels of a picture"},
    {"data.sizes", AD_KEY_NUMBER, .list = 1, .offset = AT(lines.sizes), .second = AT(lines.size_count), .least = 1,
     .most = 1 << 12, .help = "pixels of the em, least and most"},
    {"data.weights", AD_KEY_NUMBER, .list = 1, .offset = AT(lines.weights), .second = AT(lines.weight_count),
     .least = -1, .most = 1, .fallback = "",
     .help = "ems by which strokes are wider than the font has them, least and most; empty: as they are"},
    {"data.rotation", AD_KEY_NUMBER, .offset = AT(lines.rotation), .least = 0, .most = 45, .fallback = "0",
     .help = "degrees by which a line is rotated at most"},
    {"data.noise", AD_KEY_NUMBER, .offset = AT(lines.noise), .least = 0, .most = 1, .fallback = "0",
     .help = "standard deviation of what is added to every pixel"},
    {"data.blank", AD_KEY_BOOLEAN, .offset = AT(lines.blank), .fallback = "false",
     .help = "empty pictures, to see what is known without reading"},
    {"evaluate.lines", AD_KEY_INTEGER, .offset = AT(read), .least = 0, .most = 1 << 20, .fallback = "64",
     .help = "validation lines that are read letter by letter after the training; 0: none"}};

/* ---- values that follow from the options ---- */

int64_t ad_ocr_patches(const ad_ocr_options *options) {
  return options->patch > 0 ? options->lines.width / options->patch : 0;
}
int64_t ad_ocr_patch_pixels(const ad_ocr_options *options) { return options->lines.height * options->patch; }

static int64_t mlp_width(int64_t d_model) { return ((8 * d_model + 2) / 3 + 15) / 16 * 16; }
int64_t ad_ocr_encoder_hidden(const ad_ocr_options *options) { return mlp_width(options->encoder_d_model); }
int64_t ad_ocr_hidden(const ad_ocr_options *options) {
  return options->d_hidden ? options->d_hidden : mlp_width(options->decoder.d_model);
}

void ad_ocr_complete(void *options) {
  ad_ocr_options *ocr = options;
  ocr->decoder.data.seq = ad_ocr_patches(ocr) + ocr->lines.chars;
}

static ad_layout batch_layout(const ad_mesh *mesh, ad_type other) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, ad_mesh_named(mesh) & ~AD_AXES_DP, other);
  ad_layout_set(&layout, AD_AXES_DP, AD_S(0));
  return layout;
}

ad_layout ad_ocr_images_layout(const ad_mesh *encoder) { return batch_layout(encoder, AD_I); }

ad_layout ad_ocr_placed_layout(const ad_mesh *model) {
  ad_layout layout = batch_layout(model, AD_I);
  ad_layout_set(&layout, AD_AXES(AD_CP), AD_R);
  return layout;
}

/* ---- checking values together ---- */

static void check_encoder(const ad_ocr_options *ocr, const ad_mesh *mesh, const ad_complaints *to) {
  long long d = ocr->encoder_d_model, heads = ocr->encoder_heads, tp = ad_mesh_axis_size(mesh, AD_TP);
  long long cp = ad_mesh_axis_size(mesh, AD_CP), patches = ad_ocr_patches(ocr);
  if (d < 1 || heads < 1) return;
  if (d % heads || d / heads % 2)
    ad_complain(to, "model.encoder_heads",
                "must divide model.encoder_d_model into parts of an even width, but %lld / %lld is %.4g; change one of "
                "the two keys",
                d, heads, (double)d / (double)heads);
  if (heads % tp)
    ad_complain(to, "model.encoder_heads",
                "tp=%lld of the encoder shards its heads evenly, but %lld heads are not a multiple of tp; set "
                "model.encoder_heads to %lld",
                tp, heads, (heads / tp + 1) * tp);
  if (patches >= 1 && patches < cp)
    ad_complain(to, "model.patch",
                "cp=%lld of the encoder shards the patches, but there are only %lld patches; make at least %lld, with "
                "a smaller model.patch or a larger data.width",
                cp, patches, cp);
}

static void check_picture(const ad_ocr_options *ocr, const ad_complaints *to) {
  long long width = ocr->lines.width, patch = ocr->patch;
  if (width >= 1 && patch >= 1 && width % patch) {
    long long below = width / patch * patch, above = below + patch;
    ad_complain(to, "model.patch",
                "must divide data.width, but %lld is not a multiple of %lld; set data.width to %lld or %lld", width,
                patch, below ? below : above, below ? above : above + patch);
  }
  if (ocr->lines.size_count != 2 && ocr->lines.size_count)
    ad_complain(to, "data.sizes", "must be two numbers, the least and the most, but has %zu numbers",
                ocr->lines.size_count);
  if (ocr->lines.weight_count && ocr->lines.weight_count != 2)
    ad_complain(to, "data.weights", "must be two numbers, the least and the most, but has %zu numbers",
                ocr->lines.weight_count);
}

/* Checks that cp can shard the sequence of patches and characters into even chunks. The complaint is about the number
 * of characters, because that is easier to change than the number of patches. */
static void check_sequence(const ad_ocr_options *ocr, const ad_mesh *mesh, const ad_complaints *to) {
  long long cp = ad_mesh_axis_size(mesh, AD_CP), patches = ad_ocr_patches(ocr), chars = ocr->lines.chars;
  long long over = (patches + chars) % (2 * cp);
  if (cp == 1 || chars < 1 || patches < 1 || !over) return;
  long long below = chars - over, above = below + 2 * cp;
  ad_complain(to, "data.chars",
              "cp=%lld shards the sequence into %lld chunks, but its %lld patches and %lld characters together are not "
              "a multiple of the number of chunks; set data.chars to %lld or %lld",
              cp, 2 * cp, patches, chars, below >= 1 ? below : above, below >= 1 ? above : above + 2 * cp);
}

static void check_short_sequence(const ad_ocr_options *ocr, const ad_mesh *mesh, const ad_complaints *to) {
  long long tp = ad_mesh_axis_size(mesh, AD_TP), patches = ad_ocr_patches(ocr), chars = ocr->lines.chars;
  if (ocr->decoder.sequence_parallel && patches >= 1 && chars >= 1 && patches + chars < tp)
    ad_complain(to, "data.chars",
                "tp=%lld shards the sequence with sequence_parallel, but the sequence has only %lld patches and %lld "
                "characters; raise data.chars until both together are at least %lld",
                tp, patches, chars, tp);
}

/* Checks that the number of samples of each microbatch is a multiple of `multiple`, because the bridge shards each
 * microbatch into that many equal parts. */
static void check_rows(const ad_program_setting *setting, int64_t multiple, const ad_complaints *to) {
  long long batch = setting->global_batch, fits = multiple * setting->microbatches, below = batch / fits * fits;
  for (int64_t m = 0; m < setting->microbatches; m++) {
    long long rows = ad_cut(setting->global_batch, m, setting->microbatches).count;
    if (rows % multiple == 0) continue;
    ad_complain(to, "train.global_batch",
                "is %lld samples, of which microbatch %lld of %lld has %lld, but the bridge shards each microbatch "
                "into %lld equal parts; set train.global_batch to %lld or %lld, or model.ragged to true",
                batch, (long long)m + 1, (long long)setting->microbatches, rows, (long long)multiple,
                below ? below : fits, below ? below + fits : 2 * fits);
    return;
  }
}

/* Checks that a bridge can join the two meshes, and that batches of this size can be sent over it. */
static void check_bridge(const ad_ocr_options *ocr, const ad_program_setting *setting, const ad_mesh *const *meshes,
                         const ad_complaints *to) {
  ad_layout from = ad_ocr_images_layout(meshes[0]), placed = ad_ocr_placed_layout(meshes[1]);
  ad_bridge_options options = {.size = sizeof options, .ragged = ocr->ragged};
  int64_t multiple;
  ad_status status = ad_bridge_check(&from, &placed, &options);
  if (status) ad_complain_of(to, "mesh.model", status);
  if (setting->microbatches < 1) return;
  if (!ad_bridge_rows_multiple(&from, &placed, &options, &multiple)) check_rows(setting, multiple, to);
}

void ad_ocr_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to) {
  const ad_ocr_options *ocr = options;
  ad_decoder_check_axes("ocr", "mesh.encoder", meshes[0], to);
  ad_decoder_check("ocr", "mesh.model", &ocr->decoder, meshes[1], to);
  check_sequence(ocr, meshes[1], to);
  check_short_sequence(ocr, meshes[1], to);
  check_encoder(ocr, meshes[0], to);
  check_picture(ocr, to);
  check_bridge(ocr, setting, meshes, to);
}

/* Complains about each font that cannot be used. Returns how many there are. */
static size_t check_fonts(const ad_line_options *lines, const ad_complaints *to) {
  size_t bad = 0;
  for (size_t i = 0; i < lines->font_count; i++) {
    char key[40];
    ad_status status = ad_line_font_check(lines, lines->fonts[i]);
    if (!status) continue;
    snprintf(key, sizeof key, "data.fonts[%zu]", i);
    ad_complain_of(to, key, status);
    bad++;
  }
  if (!lines->validation_font) return bad;
  ad_status status = ad_line_font_check(lines, lines->validation_font);
  if (status) ad_complain_of(to, "data.validation_font", status);
  return bad + (status != AD_OK);
}

void ad_ocr_check_files(const void *options, const ad_complaints *to) {
  const ad_ocr_options *ocr = options;
  const ad_line_options *lines = &ocr->lines;
  /* checks each path, but not the length of all texts together */
  ad_text_options text = {.text = lines->text, .text_count = lines->text_count};
  ad_line_data *data;
  ad_text_check_files(&text, AD_VOCABULARY_BYTES, to);
  if (check_fonts(lines, to) || lines->height < 1 || lines->width < 1 || lines->chars < 1 || !lines->text_count) return;
  ad_status status = ad_line_data_open(lines, &data);
  if (status)
    ad_complain_of(to, "data.text", status);
  else
    ad_line_data_close(data);
}
