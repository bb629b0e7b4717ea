/* The whole public API: core, audit and train. Each header is one concept and builds only on the headers above it. */
#ifndef ADDEND_ADDEND_H
#define ADDEND_ADDEND_H
#include "addend/core.h"
#include "addend/diff.h"
#include "addend/products.h"
#include "addend/tensor.h"
#include "addend/operation.h"
#include "addend/layers.h"
#include "addend/experts.h"
#include "addend/module.h"
#include "addend/data.h"
#include "addend/checkpoint.h"
#include "addend/program.h"
#include "addend/recipe.h"
#include "addend/report.h"
#include "addend/train.h"
#include "addend/export.h"
#include "addend/sample.h"
#include "addend/plan.h"
#include "addend/check.h"
#include "addend/main.h"
#endif
