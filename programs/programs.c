/* The programs that recipes may name without registering them, in the order in which help lists them. */
#include "decompose/model.h"
#include "gpt/gpt.h"
#include "moe/moe.h"
#include "ocr/ocr.h"

/* Declared in train/program/program.h; programs include no private header of train/. */
extern const ad_program_kind *(*const ad_own_programs[])(void);
const ad_program_kind *(*const ad_own_programs[])(void) = {ad_gpt, ad_moe, ad_ocr, ad_decompose, NULL};
