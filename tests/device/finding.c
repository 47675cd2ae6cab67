/* A small library that says where it lies. Variants: one that holds the same
 * function under another file's name, one that uses it, one with torch's
 * name. */
#if !defined FINDING_USER && !defined FINDING_TORCH
const char *gbfind_where(void);
const char *gbfind_where(void) {
  return FINDING_WHERE;
}
#endif

#ifdef FINDING_USER
const char *gbfind_where(void);
const char *gbfind_user(void);
const char *gbfind_user(void) {
  return gbfind_where();
}
#endif

#ifdef FINDING_TORCH
const char *gbfind_torch(void);
const char *gbfind_torch(void) {
  return FINDING_WHERE;
}
#endif
