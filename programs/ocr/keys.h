/* The recipe keys of the program `ocr` and their checks. They can be used without a tape. */
#ifndef OCR_KEYS_H
#define OCR_KEYS_H
#include "decoder/keys.h"
#include "ocr/ocr.h"

enum { AD_OCR_OWN_KEY_COUNT = 19, AD_OCR_KEY_COUNT = AD_DECODER_KEY_COUNT + AD_OCR_OWN_KEY_COUNT };
extern const ad_key ad_ocr_keys[AD_OCR_KEY_COUNT];

/* Functions of the program's record; `options` is an ad_ocr_options. */
void ad_ocr_complete(void *options);
void ad_ocr_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to);
void ad_ocr_check_files(const void *options, const ad_complaints *to);

int64_t ad_ocr_patches(const ad_ocr_options *options);      /* returns the number of patches in a picture */
int64_t ad_ocr_patch_pixels(const ad_ocr_options *options); /* returns the number of pixels in a patch */
int64_t ad_ocr_encoder_hidden(const ad_ocr_options *options);
int64_t ad_ocr_hidden(const ad_ocr_options *options);
/* Return the layouts of the images on the two meshes of the bridge: the encoder's and the decoder's. */
ad_layout ad_ocr_images_layout(const ad_mesh *encoder);
ad_layout ad_ocr_placed_layout(const ad_mesh *model);

#endif
