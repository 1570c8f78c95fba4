/* bytes.h - the page as one file.  join.py makes it of this folder's .html, .css and .js at build time. */
#ifndef PAGE_BYTES_H
#define PAGE_BYTES_H

#include <stddef.h>

extern const unsigned char page_html[], page_gzip[];
extern const size_t page_html_n, page_gzip_n;
extern const char page_policy[];     /* its Content-Security-Policy */
extern const char page_tag[];        /* a hash of it, in hexadecimal */

#endif
