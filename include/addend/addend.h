/* The whole public API. Each header is one concept, in the order in which they build on each other. */
#ifndef ADDEND_ADDEND_H
#define ADDEND_ADDEND_H
#include "addend/status.h"
#include "addend/dtype.h"
#include "addend/mesh.h"
#include "addend/layout.h"
#include "addend/comm.h"
#include "addend/array.h"
#include "addend/reduce.h"
#include "addend/optim.h"
#include "addend/data.h"
#include "addend/safetensors.h"
#include "addend/checkpoint.h"
#include "addend/tensor.h"
#include "addend/parameter.h"
#include "addend/model.h"
#include "addend/recipe.h"
#include "addend/train.h"
#include "addend/plan.h"
#include "addend/check.h"
#endif
