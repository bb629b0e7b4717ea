/* The internal interface: functions that libaddend exports in addition to its public API, for libaddend_train of the
 * same version only. core/exports.map lists them, header by header; script/check-layers compares both libraries with
 * that list. */
#ifndef BASE_INTERNAL_H
#define BASE_INTERNAL_H

/* Marks a function of the internal interface. */
#define AD_INTERNAL __attribute__((visibility("default")))

#endif
