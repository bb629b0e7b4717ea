/* Files and folders that are first written under a temporary name. Nobody can guess this name, so nobody can put a link
 * or file there before. Temporary files that a killed process has left are removed later. */
#ifndef BASE_UNFINISHED_H
#define BASE_UNFINISHED_H
#include <stddef.h>
#include <stdio.h>
#include "addend/status.h"
#include "base/internal.h"

enum { AD_TOKEN_SIZE = 17 }; /* bytes of a token: sixteen hexadecimal digits and the final 0 */

/* Returns 64 random bits, never 0. */
AD_INTERNAL long long ad_token_bits(void);
AD_INTERNAL void ad_token_print(long long bits, char token[AD_TOKEN_SIZE]);
/* Writes a whole file: `write` prints to a file with a temporary name, which is then renamed to `path`. AD_IO names the
 * path. If `keep` is not NULL, on success *keep is the file, still open so that the caller can append to it. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_write(const char *path, ad_status (*write)(FILE *file, void *context),
                                                     void *context, FILE **keep);
/* Returns AD_IO if the path must not be replaced: it is a folder, a pipe, a device, a link to one of these, or a link
 * into /proc (like /dev/stdout). A link to a regular file is accepted; the link itself is replaced. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_check(const char *path);
/* Sets *out to the temporary name "PATH.TOKEN.tmp"; release it with ad_release. The errors are those of
 * ad_unfinished_check. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_path(const char *path, char **out);
/* Finishes a file: renames it to `path`, and replaces what has this name (a link itself, not its target). `written` is
 * the status of writing the file. A file that was not written completely, or cannot be renamed, is removed. */
AD_CHECKED ad_status ad_unfinished_end(const char *unfinished, const char *path, ad_status written);
AD_INTERNAL int ad_is_unfinished(const char *entry, const char *name); /* returns 1 if `entry` is NAME.TOKEN.tmp */
/* Removes all files NAME.TOKEN.tmp of these names from the folder; removes nothing if the folder is a link. */
AD_INTERNAL AD_CHECKED ad_status ad_unfinished_remove(const char *folder, const char *const *names, size_t count);

#endif
