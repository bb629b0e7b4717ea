/* Declarations: what sources other than the dump's writer say of one parameter (addend.declared), such as annotations of
 * types, wrappers and dtypes that the job asks for. */
#ifndef DIFF_DECLARED_H
#define DIFF_DECLARED_H
#include <jansson.h>
#include "read/dump.h"

/* What one source declares of one parameter: types on some axes, or the dtype in which its sum is formed. The texts are
 * owned by a file of the dump; "": not given. */
typedef struct ad_declared {
  const char *by;              /* the source, such as "spmd_types" */
  const char *where;           /* file and line of the declaration */
  const char *words;           /* what the source says itself, where a type loses it: "V on tp" */
  uint32_t axes;               /* bit set of the axes whose types are declared; 0: a dtype is declared */
  ad_type types[AD_DUMP_AXES]; /* R, I or S(d) on each of `axes` */
  ad_dtype dtype;              /* the dtype in which the sum is formed; 0: types are declared */
  uint32_t over;               /* the axes over whose sum the dtype is declared */
  int given;                   /* 1: the job named the dtype itself; 0: it is a default of the source */
  int counts;                  /* 1: the parameter's sum is read by this declaration */
  int sums;     /* 1: the source is a wrapper that sums over the axes of type R itself, so that R is a fact there */
  int placed;   /* 1: the types are those of a placement, which a library chooses where the job says nothing */
  int by_types; /* 1: the source is the writer's own `types=`, which is believed */
  int by_hook;  /* 1: a hook of the job was seen to sum over these axes, or to take the mean, which is no sum */
} ad_declared;

/* Reads the rows that a file has for the parameter, whose types must be known, and sets the fields that follow from
 * them: declared, declared_r, declared_i and assumed, since a declared I may be wrong. The message of AD_INVALID names the
 * file and the parameter. */
ad_status ad_declared_read(const ad_dump *dump, const ad_dump_file *file, ad_dump_param *param) AD_CHECKED;
/* Returns the source of the type that is declared for `axis` and counts there, or NULL if there is none. */
const ad_declared *ad_declared_of(const ad_dump_param *param, int axis);
/* Returns the declaration by which the job itself asks for the promised dtype of a sum over all of `axes`, or NULL if there
 * is none. */
const ad_declared *ad_declared_dtype(const ad_dump_param *param, uint32_t axes);

#endif
