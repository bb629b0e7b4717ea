/* An encoder of pictures: patches of each as a sequence, blocks in which every patch sees all, and a projection to what
 * a decoder takes. */
#ifndef PROGRAM_ENCODER_H
#define PROGRAM_ENCODER_H
#include "addend/model.h"
#include "nn/layers.h"

typedef struct ad_encoder_block {
  ad_norm_layer attention_norm, mlp_norm;
  ad_attention_layer attention;
  ad_mlp_layer mlp;
} ad_encoder_block;

typedef struct ad_encoder {
  const ad_ocr_options *options;
  size_t patch, projection; /* parameters: [pixels of a patch, encoder_d_model], [encoder_d_model, d_model] */
  ad_encoder_block *blocks;
  ad_norm_layer final_norm;
  size_t param_count;
  ad_tensor **leaves;
  double product_elements; /* of all matrices that patches are multiplied with */
} ad_encoder;

/* Adds the module "encoder", number `module` of the program's meshes; borrows the options. */
ad_status ad_encoder_create(ad_encoder *encoder, const ad_ocr_options *options, size_t module,
                            ad_program *to) AD_CHECKED;
void ad_encoder_release(ad_encoder *encoder);
/* Patches [batch, patches, pixels], S0 on dp, S1 on cp, I on tp -> [batch, patches, d_model], S0 on dp and I on the
 * others. In a phase of the encoder's module. */
ad_tensor *ad_encoder_forward(ad_encoder *encoder, ad_phase_run *at, ad_tensor *patches);

#endif
