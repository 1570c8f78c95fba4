/* dlfcn.h - the libraries that kernels/cuda looks for at run time, in the emulation: lt.cc, if a test says
 * so, and no other. */
#ifndef EMU_DLFCN_H
#define EMU_DLFCN_H

#define RTLD_NOW 2
#define RTLD_LOCAL 0

#define dlopen  emu_dlopen
#define dlsym   emu_dlsym
#define dlerror emu_dlerror
#define dlclose emu_dlclose

void *emu_dlopen(const char *name, int how);
void *emu_dlsym(void *library, const char *name);
const char *emu_dlerror();
int emu_dlclose(void *library);

#endif
