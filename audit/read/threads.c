/* Runs items of work on several threads: each thread takes the next item until none is left. */
#include "read/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"

enum { THREADS_MAX = 64 };

/* The state that the threads share. */
typedef struct ad_crew {
  const ad_work *work;
  pthread_mutex_t lock; /* protects the fields below, but not `reported` */
  size_t next;          /* index of the first item that no thread has taken */
  unsigned char *done;  /* [index]: 1 if the item is done */
  ad_status status;     /* status of the failed item with the smallest index */
  size_t failed;        /* index of that item; `count` if none failed */
  char message[AD_MESSAGE_MAX];
  size_t reported; /* how many items were reported; only the caller's thread uses this field */
} ad_crew;

/* Takes the next item of work; returns 0 if no item is left or one has failed. */
static int take_item(ad_crew *crew, size_t *index) {
  pthread_mutex_lock(&crew->lock);
  int there = crew->next < crew->work->count && !crew->status;
  if (there) *index = crew->next++;
  pthread_mutex_unlock(&crew->lock);
  return there;
}

/* Marks item `index` as done, and keeps its error if no item with a smaller index failed. */
static void put_back(ad_crew *crew, size_t index, ad_status status) {
  pthread_mutex_lock(&crew->lock);
  crew->done[index] = 1;
  if (status && index < crew->failed) {
    crew->failed = index;
    crew->status = status;
    snprintf(crew->message, sizeof crew->message, "%s", ad_last_error());
  }
  pthread_mutex_unlock(&crew->lock);
}

static int is_done(ad_crew *crew, size_t index) {
  pthread_mutex_lock(&crew->lock);
  int done = index < crew->failed && crew->done[index];
  pthread_mutex_unlock(&crew->lock);
  return done;
}

/* Reports all items that are done, in order, on the caller's thread. */
static void report_done(ad_crew *crew) {
  const ad_work *work = crew->work;
  for (; work->reported && crew->reported < work->count && is_done(crew, crew->reported); crew->reported++)
    work->reported(work->context, crew->reported);
}

/* The main function of a helper thread. */
static void *help(void *argument) {
  ad_crew *crew = argument;
  size_t index;
  while (take_item(crew, &index)) put_back(crew, index, crew->work->each(crew->work->context, index));
  return NULL;
}

/* Does items on the caller's thread like a helper thread, and also reports items that are done. */
static void lead(ad_crew *crew) {
  size_t index;
  while (take_item(crew, &index)) {
    put_back(crew, index, crew->work->each(crew->work->context, index));
    report_done(crew);
  }
}

/* Starts at most `count` helper threads; returns how many could be started. They block all signals, so that signals go
 * to the program's own threads. */
static int start(ad_crew *crew, int count, pthread_t *threads) {
  sigset_t all, before;
  int started = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (started < count && !pthread_create(&threads[started], NULL, help, crew)) started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

ad_status ad_work_do(const ad_work *work, int threads) {
  ad_crew crew = {.work = work, .failed = work->count};
  pthread_t helping[THREADS_MAX];
  size_t helpers = threads < 1 ? 0 : threads > THREADS_MAX ? THREADS_MAX - 1 : (size_t)threads - 1;
  if (helpers >= work->count) helpers = work->count ? work->count - 1 : 0;
  AD_TRY(ad_new(work->count, &crew.done));
  pthread_mutex_init(&crew.lock, NULL);
  int started = start(&crew, (int)helpers, helping);
  lead(&crew);
  for (int i = 0; i < started; i++) pthread_join(helping[i], NULL);
  report_done(&crew);
  pthread_mutex_destroy(&crew.lock);
  ad_release(crew.done);
  return crew.status ? ad_fail(crew.status, "%s", crew.message) : AD_OK;
}
