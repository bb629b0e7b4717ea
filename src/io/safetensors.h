/* The names that safetensors files have for dtypes. */
#ifndef IO_SAFETENSORS_H
#define IO_SAFETENSORS_H
#include "addend/safetensors.h"

enum { AD_SAFETENSORS_HEADER_MAX = 100000000 }; /* bytes; the limit of the format's own reader */
const char *ad_safetensors_dtype_name(ad_dtype dtype);
/* 0 for the name of a dtype that addend does not have, or of none. */
ad_dtype ad_safetensors_dtype(const char *name);

#endif
