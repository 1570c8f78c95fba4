"""Texts of `make bench-guesses`: what is asked for, and what a dictated model answers."""
import difflib, re

CODE = '''import os
import sys


class Inventory:
    def __init__(self, path):
        self.path = path
        self.items = {}

    def load(self):
        with open(self.path) as f:
            for line in f:
                name, count = line.strip().split(",")
                self.items[name] = int(count)

    def save(self):
        with open(self.path, "w") as f:
            for name in sorted(self.items):
                f.write("%s,%d\\n" % (name, self.items[name]))

    def add(self, name, count):
        if count < 0:
            raise ValueError("count is negative")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        if self.items.get(name, 0) < count:
            raise ValueError("too few items")
        self.items[name] -= count

    def total(self):
        return sum(self.items.values())
'''
CHANGED = '''import os
import sys


class Stock:
    """Items and how many there are of each, kept in a file of lines."""

    def __init__(self, path):
        self.path = path
        self.items = {}

    def load(self):
        if not os.path.exists(self.path):
            return
        with open(self.path) as f:
            for line in f:
                name, count = line.strip().split(",")
                self.items[name] = int(count)

    def save(self):
        part = self.path + ".part"
        with open(part, "w") as f:
            for name in sorted(self.items):
                f.write("%s,%d\\n" % (name, self.items[name]))
        os.replace(part, self.path)

    def add(self, name, count):
        if count <= 0:
            raise ValueError("count must be positive")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        left = self.items.get(name, 0) - count
        if left < 0:
            raise ValueError("too few items")
        self.items[name] = left

    def total(self):
        return sum(self.items.values())
'''
ARTICLE = '''The town of Ashford has voted to close its old stone bridge to cars from next spring. The bridge, built in 1784, \
carries about nine thousand vehicles a day, three times what engineers consider safe for a structure of its age. A \
survey last autumn found cracks in two of the five arches and loose stones above the waterline. The council will spend \
2.4 million pounds on repairs over eighteen months. During that time pedestrians and cyclists may still cross, but \
buses will take the ring road, which adds about twelve minutes to the journey from the station to the hospital. Shop \
owners on the east bank fear that they will lose customers. "Half of my trade comes over that bridge," said Maria \
Lopez, who runs a bakery on Mill Street. The council has offered free parking near the market as a compensation and \
promised to review the plan after six months.'''
SUMMARY = '''Ashford will close its old stone bridge to cars from next spring because it carries about nine thousand \
vehicles a day, far too many for its age. A survey found cracks in two of the five arches. Repairs cost 2.4 million \
pounds and last for eighteen months, in which buses will take the ring road. Local shop owners worry about losing \
customers, so the council has offered free parking and wants to review the plan after six months.'''
SCHEMA = '''{"invoice_number": "string", "date_of_issue": "string", "customer": {"full_name": "string", "street_address": \
"string", "postal_code": "string", "country": "string"}, "items_ordered": "number", "total_amount": "number", "currency": \
"string", "payment_terms": "string", "contact_email": "string"}

Invoice 2024-0117 of March 3rd to Anna Berg, Storgata 12, 0184 Oslo, Norway: four chairs, 1,180 euros, due in thirty \
days. Questions to anna.berg at example.org'''
ANSWER = '''{"invoice_number": "2024-0117", "date_of_issue": "2024-03-03", "customer": {"full_name": "Anna Berg", \
"street_address": "Storgata 12", "postal_code": "0184", "country": "Norway"}, "items_ordered": 4, "total_amount": 1180, \
"currency": "EUR", "payment_terms": "30 days", "contact_email": "anna.berg@example.org"}'''
PEOPLE = [("Anna", "Berg", "1984-03-12", "Oslo", "nurse"), ("Peter", "Hall", "1990-11-02", "Leeds", "driver"),
          ("Maria", "Lopez", "1975-07-30", "Madrid", "baker"), ("John", "Smith", "1969-01-05", "Boston", "teacher"),
          ("Lena", "Fischer", "1988-09-17", "Hamburg", "engineer"), ("Paul", "Martin", "1993-05-21", "Lyon", "cook")]
RECORD = '{{"first_name": "{}", "last_name": "{}", "date_of_birth": "{}", "city": "{}", "occupation": "{}"}}'

# of the default model, which answers as it likes: a chat's text, or one that goes on
ASKED = {
    "editing": {"prompt": f"The file before:\n```python\n{CODE}```\n\nThe same file after renaming the class Inventory to "
                          f"Stock:\n```python\nimport os\nimport sys\n\n\nclass Stock:\n"},
    "summary": {"chat": "Summarize the following article in three sentences.\n\n" + ARTICLE},
    "json": {"prompt": "Records:\n" + "\n".join("{} {}, born {}, lives in {}, works as {}.".format(*x) for x in PEOPLE) +
                       "\n\nThe same as JSON:\n[" + RECORD.format(*PEOPLE[0]) + ",\n"},
    "random": {"prompt": "Once upon a time", "temperature": 1, "seed": 5},
}
# of a dictated model: (what the prompt has, the answer)
DICTATED = {"editing": (CODE, CHANGED), "summary": (ARTICLE, SUMMARY), "json": (SCHEMA, ANSWER)}


def pieces(text):
    """About as a tokenizer cuts it: words of up to six letters, marks, runs of blanks before them."""
    return re.findall(r"\s*[A-Za-z]{1,6}|\s*\d{1,3}|\s*[^\w\s]|\s*_|\s+", text)


def numbered(before, after, first):
    """Ids of both texts, from `first` on, each once in a text: a piece of the answer has the id that it has in the
    prompt, where a comparison of both finds it again.  Also: the part of the answer that is so."""
    a, b = pieces(before), pieces(after)
    prompt = list(range(first, first + len(a)))
    answer, fresh, same = [], first + len(a) + 1, 0
    for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            answer += prompt[i:j]
            same += j - i
        else:
            answer += range(fresh, fresh + m - k)
            fresh += m - k
    return prompt + [first + len(a)], answer, same / len(answer), fresh


def dictations(first=1000):
    """{task: (prompt's ids, answer's ids, part of it that is copied)}, and the table of what follows what."""
    out, follows = {}, {}
    for task, (before, after) in DICTATED.items():
        prompt, answer, same, first = numbered(before, after, first)
        out[task] = (prompt, answer, same)
        follows.update(zip([prompt[-1], *answer], answer))
    return out, follows
