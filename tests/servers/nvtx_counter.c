/* Counts NVTX pushes and pops per domain: a library to load through NVTX_INJECTION64_PATH, without NVTX's headers.

   For each domain it makes the file $NVTX_COUNTER_DIR/PID.DOMAIN of two uint64, pushes and pops, which it maps and
   so keeps up to date, and appends each message that is registered to PID.DOMAIN.names. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EXPORT_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { RANGE_PUSH = 4, RANGE_POP = 5, REGISTER_STRING = 10, DOMAIN_CREATE = 12 };

typedef void (*function)(void);
typedef struct {
  size_t size;
  int (*module_functions)(int module, function ***table, unsigned int *length);
} callbacks;
typedef struct {
  uint64_t *counts;
  char path[PATH_MAX];
} domain;

static void *domain_create(const char *name) {
  domain *created = calloc(1, sizeof *created);
  const char *directory = getenv("NVTX_COUNTER_DIR");
  snprintf(created->path, sizeof created->path, "%s/%d.%s", directory ? directory : ".", (int)getpid(), name);
  int file = open(created->path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, 16) != 0) abort();
  created->counts = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (created->counts == MAP_FAILED) abort();
  close(file);
  return created;
}

static void *register_string(domain *of, const char *text) {
  char path[PATH_MAX + 8];
  snprintf(path, sizeof path, "%s.names", of->path);
  FILE *names = fopen(path, "a");
  if (names == NULL) abort();
  fprintf(names, "%s\n", text);
  fclose(names);
  return strdup(text);
}

static int range_push(domain *of, const void *attributes) {
  (void)attributes;
  return of ? (int)__atomic_fetch_add(&of->counts[0], 1, __ATOMIC_RELAXED) : 0;
}

static int range_pop(domain *of) { return of ? (int)__atomic_fetch_add(&of->counts[1], 1, __ATOMIC_RELAXED) : 0; }

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
  const callbacks *exported = export_table(EXPORT_CALLBACKS);
  function **table = NULL;
  unsigned int length = 0;
  if (exported == NULL || !exported->module_functions(MODULE_CORE2, &table, &length)) return 0;
  if (length <= DOMAIN_CREATE) return 0;
  *table[RANGE_PUSH] = (function)range_push;
  *table[RANGE_POP] = (function)range_pop;
  *table[REGISTER_STRING] = (function)register_string;
  *table[DOMAIN_CREATE] = (function)domain_create;
  return 1;
}
