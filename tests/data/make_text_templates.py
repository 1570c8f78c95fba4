#!/usr/bin/env python3
"""Write text_templates.json: templates, variables, and what Jinja2 makes of them when it is set
up as transformers does for chat templates.  Needs jinja2 (3.1).

    python3 tests/data/make_text_templates.py > tests/data/text_templates.json
"""
import json
import sys
import time

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: time.strftime(f)

V = {
    "s": "Hello, World", "u": "Grüße, 世界 👋", "n": 7, "f": 2.5, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "a", "C"], "e": [], "d": {"a": 1, "b": "two", "c": [1, {"x": None}]},
    "sp": "  \t padded \n ", "q": "it's \"quoted\" \\ \n \u00e9 \u200b", "html": "<a href='x'>&</a>",
    "objs": [{"role": "user", "n": 1, "k": {"z": "Z"}}, {"role": "tool", "n": 2}, {"role": "user", "n": 3, "on": True}],
    "big": 123456789012345, "tiny": 1e-7, "huge": 1e22, "third": 0.1, "neg": -3,
    "items": {"keys": "K", "get": "G", "plain": "P"}, "multi": "one\ntwo\n\nthree",
    "wide": {"k%02d" % i: i for i in range(20)},
}

small = [
    # printing
    "{{ s }}|{{ n }}|{{ f }}|{{ yes }}|{{ nil }}|{{ missing }}|{{ l }}|{{ d }}", "{{ q }}|{{ [q] }}", "{{ [u, html, sp] }}",
    "{{ big }} {{ tiny }} {{ huge }} {{ third }} {{ 1e16 }} {{ 1.0 }} {{ 123456.789 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }}",
    "{{ (1,) }}{{ (1, 'a') }}{{ () }}{{ {} }}{{ [] }}{{ [none, true, 1.5] }}", "{{ 1, 2 }}", "{{ '\\n\\t\\x41\\u00e9\\\\\\'' }}{{ \"a\" 'b' }}",
    "{{ 1_000 }}{{ 'a' 'b' }}", "{{ true }}{{ True }}{{ false }}{{ none }}{{ None }}",
    # operators
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + 1.5 }} {{ true + 1 }} {{ -n }} {{ +n }} {{ -2 ** 2 }} {{ 10 - 3 - 2 }}",
    "{{ 'a' ~ 1 ~ none ~ 2.0 ~ true ~ missing }}", "{{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 3 }} {{ [0] * 3 }} {{ 'x' * 0 }}|{{ 'x' * -1 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ l == [3, 1, 2] }}",
    "{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 9 in l }} {{ 'a' in d }} {{ 'zz' in d }} {{ 1 in missing }} {{ '' in s }}",
    "{{ yes and 'x' }} {{ no and 'x' }} {{ no or 'y' }} {{ nil or e or 'z' }} {{ not yes }} {{ not e }} {{ not not n }}",
    "{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} {{ 'a' if no }}| {{ 'a' if no else 'b' if no else 'c' }}",
    "{{ not 1 == 2 }} {{ 1 if 2 > 1 and not 3 > 4 else 0 }} {{ (1 + 2) * 3 }} {{ 2 * 3 ~ 4 }}",
    "{{ wide.k07 }} {{ wide['k19'] }} {{ wide | length }} {{ 'k20' in wide }} {{ wide == dict(wide) }}",
    # looking inside
    "{{ d.a }} {{ d['b'] }} {{ d.c[1].x }} {{ d.zz }}|{{ d['zz'] }}|{{ l[0] }} {{ l[-1] }} {{ l[9] }}|{{ s[0] }} {{ s[-1] }} {{ u[7] }} {{ u[9] }}",
    "{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[5:] }} {{ l[-2:] }} {{ s[1:4] }} {{ s[::-1] }} {{ u[7:9] }} {{ s[:-20] }}| {{ s[::2] }} {{ l[0:3:2] }} {{ l[2:0:-1] }} {{ u[5:100] }} {{ s[3:1] }}|",
    "{{ items.plain }} {{ items['keys'] }} {{ items.keys is callable }} {{ items.get('get') }} {{ d.get('zz') }} {{ d.get('zz', 5) }}",
    "{{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}{% for c in 'añ👋' %}[{{ c }}]{% endfor %}", "{{ objs[0].k.z }} {{ objs.0.role }} {{ d.a.b }}|",
    # string methods
    "[{{ sp.strip() }}][{{ sp.lstrip() }}][{{ sp.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'éaé'.lstrip('é') }}][{{ 'abc'.rstrip('bc') }}]",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c d'.split(none, 2) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b  '.split(none, 1) }}",
    "{{ s.upper() }} {{ s.lower() }} {{ u.upper() }} {{ 'hello wORLD it\\'s x1y'.title() }} {{ 'hELLO wORLD'.capitalize() }} {{ 'straße'.upper() }}",
    "{{ s.startswith('Hell') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('x') }} {{ s.startswith('') }}",
    "{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'abc'.replace('', '-') }} {{ s.find('World') }} {{ s.find('x') }} {{ u.find('世') }} {{ s.rfind('o') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }}",
    "{{ multi.splitlines() }} {{ 'a\\r\\nb\\n'.splitlines() }} {{ ', '.join(ls) }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ ' '.isspace() }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ s.index('W') }}",
    "{{ [1, 2,] }} {{ {'a': 1, 'b': 2,} }} {{ {'a': 1,} | length }} {{ {'a': [1,], 'b': {},}['a'] }}",
    "{{ 'x' if {} else 'y' }} {{ 'x' if {'a': 1} else 'y' }} {{ 'x' if [] else 'y' }} {{ 'x' if [0] else 'y' }}",
    "{{ '\\xaf\\xfa\\x0A' }} {{ 'abc'.rfind('') }} {{ 'éabcabc'.rfind('bc') }} {{ 'abc'.rfind('x') }} {{ 'abc'.find('') }}",
    "{{ 'abc'.index('x') }}", "{{ 'a,b,'.split(',') }} {{ ',a'.split(',') }} {{ 'a--b--'.split('--', 1) }} {{ 'a,b,'.rsplit(',', 1) }}",
    "{{ 'abc'.rindex('x') }}",
    # filters
    "[{{ sp | trim }}][{{ 'xax' | trim('x') }}][{{ missing | trim }}][{{ nil | trim }}]", "{{ s | upper }} {{ s | lower }} {{ 'hello world-foo (bar' | title }} {{ 'hELLO' | capitalize }}",
    "{{ d | tojson }} {{ q | tojson }} {{ u | tojson }} {{ [1.0, 1e22, true, none] | tojson }} {{ html | tojson }} {{ e | tojson }} {{ {} | tojson }}",
    "{{ d | tojson(indent=2) }}\n{{ [] | tojson(indent=4) }} {{ {'b': 1, 'a': [1, 2]} | tojson(indent=4, sort_keys=true) }}", "{{ d | tojson(separators=(',', ':')) }} {{ u | tojson(ensure_ascii=true) }} {{ {1: 2} | tojson }}",
    "{{ l | length }} {{ s | length }} {{ u | length }} {{ d | length }} {{ missing | length }} {{ l | count }}", "{{ l | join(', ') }} {{ ls | join }} {{ objs | join('+', attribute='role') }} {{ missing | join('x') }}|",
    "{{ missing | default('x') }} {{ nil | default('x') }} {{ nil | default('x', true) }} {{ '' | d('y', boolean=true) }} {{ n | default(1) }} {{ d.zz | default }}|",
    "{{ l | first }} {{ l | last }} {{ e | first }}|{{ s | first }} {{ s | last }} {{ 'x' | first | upper }}", "{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 2) }}",
    "{% for k, v in d | items %}{{ k }}:{{ v }} {% endfor %}{{ missing | items | list }}", "{{ 'abc' | list }} {{ d | list }} {{ l | string }} {{ 5 | string ~ 'x' }} {{ (1, 2) | list }}",
    "{{ '42' | int }} {{ '4.9' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.99 | int }} {{ '2.5' | float }} {{ 'z' | float }} {{ true | int }} {{ ' 12 ' | int }}",
    "{{ objs | selectattr('role', 'equalto', 'user') | map(attribute='n') | list }} {{ objs | rejectattr('role', 'eq', 'user') | list }} {{ objs | selectattr('on') | list | length }} {{ objs | selectattr('on', 'defined') | list | length }}",
    "{{ l | map('string') | join('-') }} {{ ls | map('upper') | list }} {{ objs | map(attribute='k.z', default='?') | list }} {{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }} {{ [0, 1, '', 'a'] | select | list }} {{ ls | map('replace', 'a', 'b') | list }}",
    "{{ l | sort }} {{ l | sort(reverse=true) }} {{ ls | sort }} {{ ls | sort(case_sensitive=true) }} {{ objs | sort(attribute='n', reverse=true) | map(attribute='n') | list }} {{ l | reverse | list }} {{ 'abc' | reverse }}",
    "{{ [1, 1, 2, 'a', 'A'] | unique | list }} {{ l | sum }} {{ objs | sum(attribute='n') }} {{ l | min }} {{ l | max }} {{ {'b': 1, 'a': 2} | dictsort }} {{ -3 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 2.1 | round(method='ceil') }}",
    "{{ html | e }} {{ html | escape }} {{ html | safe }}", "{{ multi | indent }}\n{{ multi | indent(2) }}\n{{ multi | indent(2, true) }}\n{{ multi | indent(2, blank=true) }}|{{ 'a\\n' | indent }}|", "{{ 'a b  c' | wordcount }} {{ d | attr('zz') }}|",
    "{{ -1 | abs }} {{ 3 + l | length }} {{ 'a' ~ 'b' | upper }} {{ not e | length }} {{ (1 + 2) | string + 'x' }}",
    # tests
    "{{ missing is defined }} {{ s is defined }} {{ missing is undefined }} {{ nil is none }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ s is iterable }} {{ n is iterable }} {{ l is sequence }} {{ d is sequence }}",
    "{{ n is number }} {{ n is integer }} {{ f is float }} {{ yes is boolean }} {{ yes is true }} {{ 1 is true }} {{ no is false }} {{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ yes is number }} {{ yes is integer }}",
    "{{ n is eq 7 }} {{ n is equalto(7) }} {{ n is ne 7 }} {{ n is gt 3 }} {{ n is lt 3 }} {{ 1 is in l }} {{ s is not none }} {{ not s is none }} {{ 'a' is lower }} {{ 'A' is upper }} {{ d.zz is not defined }} {{ nil is sameas none }} {{ range is callable }}",
    "{{ 'x' if s is string and n is not none else 'y' }} {{ s is string or nope }} {{ n is number | string }}", "{{ d.a is defined and d.zz is not defined and d['c'] is iterable }}",
    # statements
    "{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if no %}a{% elif n > 3 %}b{% elif yes %}d{% else %}c{% endif %}{% if no %}x{% elif no %}y{% else %}z{% endif %}{% if no %}x{% endif %}",
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{{ loop.first }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.cycle('o', 'e') }}{{ loop.changed(x > 1) }} {% endfor %}",
    "{% for x in e %}x{% else %}empty{% endfor %}{% for x in missing %}x{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% endfor %}", "{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(10, 0, -3) | list }} {{ range(0) | list }}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }} {% endfor %}{% for (a, b) in [[1, 2]] %}{{ a + b }}{% endfor %}", "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(a=0, b='') %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}|",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}{% set s = s ~ '!' %}{{ s }}", "{% set x %}  hi {{ n }} {% endset %}[{{ x }}]{% set y | trim | upper %} hi {% endset %}[{{ y }}]", "{% if yes %}{% set z = 3 %}{% endif %}{{ z }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=9) }}{{ m(b=1, a=0) }}{{ m() }}", "{% macro rec(x) %}{{ x }}{% if x > 0 %}{{ rec(x - 1) }}{% endif %}{% endmacro %}{{ rec(4) }}",
    "{% set g = 'G' %}{% macro m() %}{{ g }}{{ s }}{% endmacro %}{% set g = 'H' %}{{ m() }}", "{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m('a') }}{{ y }}|{{ m('b') | upper }}", "{% for i in l %}{% macro f(x) %}{{ x }}{{ i }}{% endmacro %}{{ f('z') }}{% endfor %}",
    "{% generation %}a{{ n }}{% set inner = 1 %}{% endgeneration %}{{ inner }}|", "{% raw %}{{ not }} {% this %}{% endraw %}x{%- raw -%}  y {{ {%- endraw -%}  z", "{# comment {{ x }} #}a{#- b -#}  c", "{% for m in objs %}{% set _ = m.role %}{{ _ }}{% endfor %}",
    # white space
    "a\n{% if yes %}\nb\n{% endif %}\nc\n", "  {% if yes %}  \n  b  \n  {% endif %}  \nc", "a  {%- if yes -%}  b  {%- endif -%}  c", "a  {{- n -}}  b", "a\n\n  {#- c -#}  \n b", "x\n  {%+ if yes %}y{% endif +%}\nz", "\n{% set a = 1 %}\n\n{{ a }}\n\n", "a\r\nb\r{{ n }}\r\n",
    "  {{ n }}\n  {% set x = 1 %}\n  {{ x }}", "text   {% if yes %}\n   q{% endif %}", "{% if yes %}\n\n\nx{% endif %}", "{%- for x in l %}\n  {{- x }}\n{%- endfor %}", "a {# c #}\nb", "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}", "{{ '}}' }}{{ \"{% x %}\" }}", "{{n}}{{-n}}{%if yes%}y{%endif%}",
    "\t{% if yes %}\n\tx\n\t{% endif %}\n", "a\n  {%- if yes %}\n  b\n  {%- endif %}\n", "", "\n", "\n\n", "{% if yes %}{% endif %}\n", "{{ n }}\n", "{#\n#}\nx",
    # errors: only that there is one is compared
    "{{ missing.x }}", "{{ missing() }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ missing + 'x' }}", "{{ raise_exception('No way: ' ~ n) }}", "{{ s | nosuch }}", "{{ s is nosuch }}", "{% if %}", "{% for x in %}{% endfor %}", "{{ 1 / 0 }}", "{{ 1 +", "{% endif %}", "{% if yes %}", "{{ 'a }}",
    "{{ l.append(1) }}", "{{ d.update({}) }}", "{% set d.a = 1 %}", "{% nosuch %}", "{{ n | length }}", "{{ n() }}", "{{ 1 < 'a' }}", "{% for x in n %}{% endfor %}", "{{ d[[]] }}", "{{ ) }}", "{{ a b }}", "{% set %}", "{{ missing | tojson }}", "{{ 5 in 'abc' }}", "{{ m(1 }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% break %}", "{{ d | items(1 }}",
    "{# open", "{{ s.nosuch() }}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{{ ''.split('') }}", "{{ [].index(1) }}", "{{ {[]: 1} }}", "{{ d.a.b.c }}",
]

# What is unknown fails where it is reached; in a loop, macro or block it does so when compiled.
small += [
    "{% if no %}{{ s | nosuch }}{% else %}ok{% endif %}", "{% if no %}{{ s is nosuch }}{% elif no and s | nosuch %}x{% endif %}ok", "{{ (s | nosuch) if no else 'ok' }}{{ 'ok' if yes else s is nosuch }}",
    "{% for x in l %}{% if no %}{{ x | nosuch(1) }}{% endif %}{{ x }}{% endfor %}", "{% if no %}{% for x in l | nosuch %}{% endfor %}{% set y = s | nosuch %}{% endif %}ok", "{% if no %}{{ nosuch(s) }}{{ s.nosuch() }}{% endif %}ok",
    "{% if no %}{{ l | map('nosuch') | list }}{{ l | select('nosuch') | list }}{% endif %}ok", "{% for x in l %}{{ x | tojson if yes else x | nosuch }}{% endfor %}", "{% if no %}{% else %}{% if no %}{% elif no %}{{ 1 is nosuch }}{% endif %}{% endif %}ok",
    "{% if yes %}{{ s | nosuch }}{% endif %}", "{% if s | nosuch %}{% endif %}", "{{ 1 if s is nosuch }}", "{% if no %}{% for x in l %}{{ x | nosuch }}{% endfor %}{% endif %}", "{% for x in e %}{{ x | nosuch }}{% endfor %}", "{% if no %}{% macro m() %}{{ s | nosuch }}{% endmacro %}{% endif %}",
    "{% if no %}{% set x %}{{ s is nosuch }}{% endset %}{% endif %}", "{% if no %}{% set x | nosuch %}{% endset %}{% endif %}", "{{ no and s | nosuch }}", "{% if no %}{% for x in l if x is nosuch %}{% endfor %}{% endif %}", "{% if no %}{% filter nosuch %}{% endfilter %}{% endif %}",
    "{% macro m(a=s | nosuch) %}{% endmacro %}", "{% with x = s | nosuch %}{% endwith %}", "{{ l | map('nosuch') | list }}", "{{ 'upper' is filter }}{{ 'nosuch' is filter }}{{ 'odd' is test }}{{ 'upper2' is test }}{{ 5 is test }}",
    # what is false gives nothing; what is chosen comes once
    "{{ nil | selectattr('a') | list }}{{ no | rejectattr('a') | list }}{{ nil | select | list }}{{ 0 | reject('odd') | list }}{{ nil | map('upper') | list }}{{ no | map(attribute='a') | list }}{{ '' | select | list }}{{ missing | selectattr('x', 'defined') | list }}",
    "{% for x in nil | selectattr('a') %}{{ x }}{% else %}none{% endfor %}", "{% for x in n | select %}{% endfor %}", "{{ nil | list }}", "{{ nil | sort }}", "{{ nil | join }}", "{{ nil | first }}", "{{ nil | items | list }}", "{{ nil | length }}", "{{ nil | max }}", "{{ no | unique | list }}",
    "{% if e | select %}always{% endif %}{% if objs | selectattr('role', 'eq', 'nobody') %} a generator is true{% endif %}{% if objs | selectattr('role', 'eq', 'nobody') | list %} not so{% endif %}",
    "{% set g = l | select %}{{ g | list }}{{ g | list }}", "{% set g = l | map('string') %}{{ g | first }}{{ g | first }}{{ '9' in g }}{{ g | list }}", "{% set g = l | select %}{{ 3 in g }}{{ g | list }}{% for x in g %}x{% else %}gone{% endfor %}",
    "{{ (l | select)[0] }}|{{ (l | select).x }}|{{ (l | select) is iterable }}{{ (l | select) is sequence }}{{ (l | select) is string }}{{ (l | select) is mapping }}", "{{ l | select | length }}", "{{ l | select | tojson }}", "{{ (l | select) + [1] }}", "{{ l | map('string') | last }}",
    "{{ l | reverse | length }}", "{{ l | select | reverse }}{{ l | reverse | first }}{{ l | unique | join('-') }}{{ d | items | map('first') | join }}{{ l | select | sort }}", "{% for x in l | select %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}", "{{ (l | map('string')) == (l | map('string')) }}",
    # text that is HTML
    "{{ html | safe + html }}|{{ html + html | safe }}|{{ html | safe ~ html }}|{{ html | safe + html | safe }}|{{ html | e + '<' }}|{{ html | e | e }}|{{ html | e | forceescape }}", "{{ html | safe + 5 }}", "{{ 5 | safe + '<' }}{{ nil | safe }}{{ missing | safe }}|{{ nil | e + '&' }}",
    "{{ (html | safe).replace('x', '<') }}{{ (html | safe).upper() + '<' }}{{ (html | safe) | trim + '<' }}{{ (html | safe) | upper + '<' }}{{ (html | safe) | string + '<' }}{{ (html | safe) | capitalize + '<' }}{{ (html | safe) | indent + '<' }}",
    "{{ (html | safe) | replace('x', '<') + '<' }}{{ (html | safe) | tojson + '<' }}{{ (html | safe) | title + '<' }}{{ [html | safe] | join + '<' }}{{ (html | safe) | first + '<' }}{{ (html | safe) | list }}", "{{ (html | safe)[0] + '<' }}{{ (html | safe)[1:3] + '<' }}{{ (html | safe)[::-1] + '<' }}{{ (html | safe) * 2 + '<' }}{{ ['<' | safe] }}",
    "{{ (html | safe).split("+'"\'"'+")[0] + '<' }}{{ (',' | safe).join(['<', '>' | safe]) + '<' }}{{ ','.join(['<' | safe]) + '<' }}{{ ('<' | safe) == '<' }}{{ '<' in (html | safe) }}{{ {'<': 1}['<' | safe] }}", "{% set x %}<{% endset %}{{ x + '<' }}{% macro m() %}<{% endmacro %}{{ m() + '<' }}{% filter e %}<{% endfilter %}",
    "{{ ('<%s>' | safe) % '<' }}{{ ('<%s %r>' | safe) | format('<' | safe, '<') }}{{ ('<{}>' | safe).format('<') }}{{ '<{}>'.format('<' | safe) + '<' }}{{ ('<%d>' | safe) % 5 }}",
    # % and format
    "{{ '%s %s' % (1, 'b') }} {{ '%s' % nil }} {{ '%s' % l }} {{ '%(a)s-%(b)r' % d }} {{ 'a%%b' % () }} {{ '%s' % missing }}| {{ 'plain' | format }} {{ '%s, %s!' | format('Hello', 'you') }} {{ '%(x)s' | format(x=1) }} {{ 'x' % d }} {{ '%s' | format(d) }}",
    "{{ '%d %i %5d|%-5d|%05d|%+d|% d|%x|%X|%#x|%o|%#o' % (3, 4, 5, 6, 7, 8, 9, 255, 255, 255, 8, 8) }} {{ '%d' % 2.9 }} {{ '%d' % true }} {{ '%x' % -255 }} {{ '%05d' % -42 }} {{ '%ld' % 3 }}",
    "{{ '%f %.2f %8.3f|%-8.1f|%08.2f|%e %.1e %g %G %g' % (1.5, 2.345, 3.14159, 2.25, -1.5, 12345.678, 0.00012, 1e10, 1e-10, 3) }} {{ '%.0f' % 2.5 }} {{ '%+.1f' % 1 }} {{ '%#.0f' % 3 }} {{ '%5.1f%%' % 12.34 }}",
    "{{ '%5s|%-5s|%.2s|%5.1s|%r|%c|%c|%*d|%-*d|%.*f' % ('a', 'b', 'abc', 'xyz', 'q', 'z', 233, 4, 5, 4, 6, 1, 2.55) }} {{ '%05s' % 'a' }} {{ '%s' % u }} {{ '%.3s' % u }} {{ '%4s' % '世' }}",
    "{{ '%s %s' % 'a' }}", "{{ '%s' % ('a', 'b') }}", "{{ 'a' % 1 }}", "{{ '%d' % 'a' }}", "{{ '%x' % 1.5 }}", "{{ '%q' % 1 }}", "{{ '%' % 1 }}", "{{ '%(a' % d }}", "{{ '%(zz)s' % d }}", "{{ '%(a)s' % 1 }}", "{{ '%c' % 'ab' }}", "{{ '%s' | format(1, x=2) }}", "{{ 5 % 'a' }}", "{{ '%99999999999d' % 1 }}",
    "{{ '{} {}'.format(1, 'b') }} {{ '{1}{0}{1}'.format('a', 'b') }} {{ '{a} {b!r}'.format(a=1, b='c') }} {{ '{{}} {{{}}}'.format(5) }} {{ '{0[a]} {0.b} {0[c][0]} {1[1]}'.format(d, l) }} {{ '{}'.format(nil) }} {{ '{}'.format(l) }} {{ '{}'.format(missing) }}| {{ ''.format() }}|{{ '{:}'.format(5) }}",
    "{{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:5}|{:.2}|{:é>3}|{:>{}}|{:{w}.{p}f}'.format('a', 'b', 'c', 'd', 'e', 'fgh', 'i', 'j', 4, 2.345, w=7, p=1) }}", "{{ '{:5}|{:<5}|{:^5}|{:05}|{:+}|{: }|{:=+6}|{:,}|{:_}|{:010,}|{:x}|{:#X}|{:o}|{:b}|{:_b}|{:d}'.format(1, 2, 3, -4, 5, 6, 7, 1234567, 1234567, 1234, 255, 255, 8, 5, 255, true) }} {{ '{:>4}'.format(true) }}{{ '{}'.format(true) }}",
    "{{ '{:.2f}|{:8.1f}|{:<8.1f}|{:08.2f}|{:e}|{:g}|{:%}|{:.1%}|{:,.2f}|{:f}|{:10}|{}|{:+.0f}'.format(2.345, 1.25, 1.25, -1.5, 12345.6, 0.0001, 0.5, 0.256, 1234567.891, 3, 1.5, 1e22, 7) }}", "{{ '{0.__class__}'.format(1) }}|{{ '{0.a}{0[zz]}'.format(d) }}|{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{0}'.format() }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}", "{{ '{:d}'.format('a') }}", "{{ '{:5}'.format(nil) }}", "{{ '{:5}'.format(l) }}", "{{ '{} {1}'.format(1, 2) }}", "{{ '{a}'.format(1) }}", "{{ '{:.2d}'.format(1) }}", "{{ '{:x}'.format(1.5) }}", "{{ '{!x}'.format(1) }}", "{{ '{:=5}'.format('a') }}",
    "{{ '{:{:{}}}'.format(1, 2, 3) }}", "{{ '{:5q}'.format(1) }}", "{{ '{0[}'.format(d) }}", "{{ '{0.}'.format(d) }}", "{{ '{:,x}'.format(5) }}",
    # blocks
    "{% filter upper %}a{{ s }}{% set z = 1 %}{% endfilter %}{{ z }}|{% filter trim | upper | replace('A', 'b') %} a {% endfilter %}", "{% macro m(x) %}[{{ caller(x) }}{{ caller(x + 1) }}]{% endmacro %}{% call(y) m(3) %}<{{ y }}{{ s }}>{% endcall %}",
    "{% macro m(x=1) %}{{ x }}({{ caller() }}){% endmacro %}{% call m() %}in{% endcall %}{% call m(x=2) %}{% for i in l %}{{ i }}{% endfor %}{% endcall %}", "{% macro m() %}{{ 'called' if caller is defined else 'alone' }}{% if caller %}{{ caller() }}{% endif %}{% endmacro %}{{ m() }}{% call m() %}!{% endcall %}", "{% call nosuch() %}{% endcall %}", "{% call s %}{% endcall %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set s = 'inner' %}{{ s }}{% endwith %}{{ a }}|{{ s }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q == 1 }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% filter %}{% endfilter %}", "{% with a %}{% endwith %}", "{% filter upper %}",
    "{% for a, b in d.items() %}{{ loop.index }}{{ a }}{% endfor %}{% for a in d.keys() %}{{ a }}{% endfor %}", "{{ 1 < n <= 7 != 8 }}{{ 1 in l in [true] }}{{ not 1 in l }}{{ 'a' 'b' ~ 1 + 2 }}",
    "{%- set x -%}  padded  {%- endset -%}[{{ x }}]", "a {%+ if yes +%} b {%+ endif +%} c\n{%+ set x = 1 +%}\nd", "  {#+ kept +#}\nx", "{% set x = [] %}{% set y = x + [1] + [2, 3] %}{{ y }}{{ y[-1:] }}{{ y | length }}", "{{ {'a': 1, 'b': {'c': []}} | tojson(indent=2, separators=(',', ': '), sort_keys=true, ensure_ascii=true) }}",
    "{{ strftime_now('%Y') == strftime_now('%Y') }}", "{{ namespace(a=1).a }}{% set q = namespace() %}{% set q.x = 1 %}{% set q.y = q.x + 1 %}{{ q.y }}{{ q.z }}|",
]

# In the manner of the templates that models ship; written for this test.
chatml = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.' }}
{%- endif %}
{%- if tools %}
    {{- "\\n\\n# Tools\\n\\nSignatures are inside <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nAnswer with <tool_call>{\\"name\\": .., \\"arguments\\": ..}</tool_call>" }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
thinking = """{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {%- if loop.last or (not loop.last and reasoning) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
headers = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message is taken out, so that it can stand first #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or (message.content is iterable and message.content is not string) %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
inst = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is defined and tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- endif %}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.tool_calls is not defined %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ', "call_id": "' + message.tool_call_id[:9] + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""
smol = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
typed = """{%- macro render_type(spec, depth=0) -%}
{%- if spec.type == "array" -%}
    {{- render_type(spec['items'], depth + 1) + "[]" -}}
{%- elif spec.type == "object" -%}
    {{- "{\\n" -}}
    {%- for name, p in spec.properties.items() -%}
        {{- "  " * (depth + 1) + name + ("" if name in (spec.required or []) else "?") + ": " + render_type(p, depth + 1) -}}
        {{- ",\\n" if not loop.last else "\\n" -}}
    {%- endfor -%}
    {{- "  " * depth + "}" -}}
{%- elif spec.enum is defined -%}
    {{- spec.enum | map('tojson') | join(' | ') -}}
{%- else -%}
    {{- spec.type | default('any') -}}
{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] %}
// {{ tool.function.description }}
type {{ tool.function.name }} = ({{ render_type(tool.function.parameters) }}) => any;
{% endfor %}
{% for m in messages %}{% generation %}{{ m.role | title }}: {{ m.content if m.content is string else m.content | map(attribute='text') | join(' ') }}
{% endgeneration %}{% endfor %}"""

parsed = """{%- set roles = messages | map(attribute='role') | list %}
{%- set first = messages | selectattr('role', 'equalto', 'system') | first %}
{{- bos_token ~ (first.content | trim if first is defined else 'Be useful.') ~ '\\n' }}
{%- for tool in tools | selectattr('type', 'eq', 'function') %}
    {{- '%d. %s: %s\\n' | format(loop.index, tool.function.name, tool.function.description or '-') }}
    {%- for name, p in tool.function.parameters.properties | dictsort %}
        {{- '   {:<8}{}\\n'.format(name + ':', p.type | default('one of ' ~ p.enum | join('/'))) }}
    {%- endfor %}
{%- endfor %}
{%- for m in messages if m.role != 'system' %}
    {%- if m.role == 'tool' %}
        {%- if m.content is string and m.as_json %}
            {%- set content = m.content | from_json %}
        {%- else %}
            {%- set content = m.content %}
        {%- endif %}
        {{- '<result>{0}</result>'.format(content) }}
    {%- elif m.tool_calls %}
        {%- for c in m.tool_calls %}
            {{- '<call {name}>'.format(name=c.function.name) ~ (c.function.arguments | tojson(separators=(',', ':'), sort_keys=true)) ~ '</call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<%s>%s</%s>' % (m.role, m.content if m.content is string else m.content | map(attribute='text') | join, m.role) }}
    {%- endif %}
{%- endfor %}
{{- '<assistant>' if add_generation_prompt }}
{{- '<think></think>' if enable_thinking is defined and not enable_thinking }}"""
marked = """{%- macro block(name) %}
<{{ name }}>{{ caller(name) | trim }}</{{ name }}>
{% endmacro %}
{%- for m in messages %}
    {%- call(tag) block(m.role) %}
        {% filter replace('\\n', ' ') %}{{ m.content | string }}{% endfilter %}
        {{ '(' ~ tag ~ ')' }}
    {%- endcall %}
{%- endfor %}
{%- with names = tools | map(attribute='function') | map(attribute='name') | list %}
    {%- if names %}
        {{- 'Tools: '|safe + names | join(', ') + ' <' ~ (names | length) ~ '>' }}
        {{- '<li>'|safe + tools[0].function.description }}
    {%- endif %}
{%- endwith %}"""

tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"place\"", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "Zürich & co"}, "days": {"type": "array", "items": {"type": "integer"}},
    "unit": {"enum": ["c", "f"]}}, "required": ["place"]}}}
call = {"id": "call_12345", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Bern", "unit": "c"}}}
u = lambda s: {"role": "user", "content": s}
a = lambda s: {"role": "assistant", "content": s}
chats = [
    {"messages": [u("Hi")], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": " Be brief. "}, u("Hi\n"), a(" Hello! "), u("世界 👋?")], "add_generation_prompt": True},
    {"messages": [u("Weather?"), {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "call_12345"}, a("21 degrees.")], "tools": [tool], "add_generation_prompt": False},
    {"messages": [u("2+2?"), a("<think>\nadd\n</think>\n\n4"), u("sure?"), a("<think>\nyes\n</think>\n\nYes.")], "add_generation_prompt": False},
    {"messages": [u("2+2?"), a("<think>\nadd\n</think>\n\n4"), u("again")], "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [u("a"), u("b")], "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}], "tools": [tool, tool], "add_generation_prompt": True},
    {"messages": [], "add_generation_prompt": True},
    {"messages": [{"role": "function", "content": "x"}], "builtin_tools": ["code_interpreter", "search"], "tools": None, "add_generation_prompt": True},
]
for c in chats:
    c.update(bos_token="<s>", eos_token="</s>")


def case(name, template, v):
    out = {"name": name, "template": template, "vars": v}
    try:
        out["out"] = env.from_string(template).render(**json.loads(json.dumps(v)))
    except Exception as e:
        out["error"] = str(e) if type(e) is jinja2.exceptions.TemplateError else True
    return out


json.dump({"vars": V,
           "small": [{k: x for k, x in case("", t, V).items() if k in ("template", "out", "error")} for t in small],
           "templates": {"smol": smol, "chatml": chatml, "thinking": thinking, "headers": headers, "inst": inst, "typed": typed, "parsed": parsed, "marked": marked},
           "chats": chats,
           "rendered": {n: [{k: x for k, x in case(n, t, c).items() if k in ("out", "error")} for c in chats]
                        for n, t in dict(smol=smol, chatml=chatml, thinking=thinking, headers=headers, inst=inst, typed=typed, parsed=parsed, marked=marked).items()}},
          sys.stdout, ensure_ascii=True, indent=0)
print()
