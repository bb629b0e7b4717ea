/* The library's own programs, in the order in which --help lists them. Recipes may name them without registration. */
#include "decompose/model.h"
#include "gpt/gpt.h"
#include "moe/moe.h"
#include "ocr/ocr.h"

/* Declared in train/program/program.h; repeated here because programs include no private header of train/. */
extern const ad_program_kind *(*const ad_own_programs[])(void);
const ad_program_kind *(*const ad_own_programs[])(void) = {ad_gpt, ad_moe, ad_ocr, ad_decompose, NULL};
