#!/usr/bin/env python3
"""Clients' own libraries ask an encoder for vectors and ranks: openai-python, LangChain, LlamaIndex, Cohere.  `make
clients-vectors` installs them; one that is missing is skipped.  The right vectors are those of e2e_encoder.py."""
from clients import *

sys.path.insert(0, os.path.join(HERE, "models"))
import encoder

TEXTS = encoder.TEXTS[:5]


def plain(p, texts):
    """What the server answers without a library."""
    status, _, text = p.ask("POST", "/v1/embeddings", {"input": texts})
    check(status == 200, text)
    return [d["embedding"] for d in json.loads(text)["data"]]


def same(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-6 for v, w in zip(a, b) for x, y in zip(v, w))


def openai_python(p, want):
    import openai
    c = openai.OpenAI(base_url=p.url + "/v1", api_key="none")
    got = c.embeddings.create(model="bert", input=TEXTS)           # asks for base64, and decodes it
    check(same([d.embedding for d in got.data], want), "openai-python: the vectors")
    check(got.usage.prompt_tokens > 0 and got.model == "bert", "openai-python: usage and model")
    short = c.embeddings.create(model="bert", input=TEXTS[0], dimensions=16, encoding_format="float").data[0].embedding
    check(len(short) == 16 and abs(sum(x * x for x in short) - 1) < 1e-5, "openai-python: dimensions")
    try:
        c.embeddings.create(model="bert", input="the " * 60)
        check(False, "openai-python: a long text is refused")
    except openai.BadRequestError as e:
        check("maximum context length" in str(e), f"openai-python: {e}")


def langchain(p, want):
    from langchain_openai import OpenAIEmbeddings
    e = OpenAIEmbeddings(model="bert", base_url=p.url + "/v1", api_key="none", check_embedding_ctx_length=False)
    check(same(e.embed_documents(TEXTS), want), "LangChain: documents")
    check(same([e.embed_query(TEXTS[0])], want[:1]), "LangChain: a query")


def llama_index(p, want):
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    e = OpenAILikeEmbedding(model_name="bert", api_base=p.url + "/v1", api_key="none")
    check(same(e.get_text_embedding_batch(TEXTS), want), "LlamaIndex: a batch")
    check(same([e.get_query_embedding(TEXTS[0])], want[:1]), "LlamaIndex: a query")


def cohere_rerank(p, want):
    import cohere
    got = cohere.ClientV2(api_key="none", base_url=p.url).rerank(model="bert", query=TEXTS[0], documents=TEXTS, top_n=3)
    check([r.index for r in got.results] == ranks(want), f"Cohere: ranks {got.results}, not {ranks(want)}")
    check(abs(got.results[0].relevance_score - 1) < 1e-5, "Cohere: a text is nearest to itself")


def ranks(want):
    return sorted(range(len(TEXTS)), key=lambda i: -sum(x * y for x, y in zip(want[0], want[i])))[:3]


def langchain_rerank(p, want):
    from langchain_cohere import CohereRerank
    r = CohereRerank(model="bert", cohere_api_key="none", base_url=p.url, top_n=3)
    got = r.rerank(documents=TEXTS, query=TEXTS[0])
    check([g["index"] for g in got] == ranks(want), f"LangChain's reranker: {got}, not {ranks(want)}")


def llama_index_rerank(p, want):
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.cohere_rerank import CohereRerank
    nodes = [NodeWithScore(node=TextNode(text=t, id_=str(i))) for i, t in enumerate(TEXTS)]
    got = CohereRerank(api_key="none", base_url=p.url, model="bert", top_n=3).postprocess_nodes(nodes, QueryBundle(TEXTS[0]))
    check([int(n.node.node_id) for n in got] == ranks(want), f"LlamaIndex' reranker: {got}, not {ranks(want)}")


def main():
    folder = tempfile.mkdtemp(prefix="slipring-test-")
    path = os.path.join(folder, "bert")
    try:
        encoder.write("bert", path)
        with Programs() as p:
            p.serve("--model", path, "--served-model-name", "bert")
            check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")
            want = plain(p, TEXTS)
            for module, what in (("openai", openai_python), ("langchain_openai", langchain),
                                 ("llama_index.embeddings.openai_like", llama_index), ("cohere", cohere_rerank),
                                 ("langchain_cohere", langchain_rerank),
                                 ("llama_index.postprocessor.cohere_rerank", llama_index_rerank)):
                if need(module):
                    what(p, want)
                    print(f"{module}: good")
    finally:
        shutil.rmtree(folder)
    done()


main()
