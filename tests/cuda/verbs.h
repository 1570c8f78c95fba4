/* verbs.h - the time of each part of a step alone, beside the most that this GPU could do: a line for each verb and
 * number of tokens.  tests/cuda/verbs.awk prints them for people, with the estimates of docs/cuda.md.  Part of bench.cc.
 *
 * A verb is repeated in a graph, another layer each time, so that weights come from memory and no launch of the host's
 * is waited for. */
#ifndef CUDA_VERBS_H
#define CUDA_VERBS_H

#define VERB_CONTEXT sc->decode_context[0]

/* Seconds of one call, by a graph of many; 0: it could not be made. */
template <class F> static double in_graph(F call)
{
	cudaGraph_t graph = NULL;
	cudaGraphExec_t exec = NULL;
	struct dev *d = &b->d;
	double t = 0;

	call();                      /* the driver loads code at first use */
	cuda_ok(d, cudaStreamSynchronize(d->stream), "measure");
	if (cuda_ok(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "capture")) {
		for (int i = 0; i < sc->repeats; i++)
			call();
		cuda_ok(d, cudaStreamEndCapture(d->stream, &graph), "capture");
	}
	if (cuda_ok(d, cudaGraphInstantiate(&exec, graph, 0), "a graph"))
		t = timed([&] { cuda_ok(d, cudaGraphLaunch(exec, d->stream), "measure"); }) / sc->repeats;
	stop_if_lost();
	cudaGraphExecDestroy(exec);
	cudaGraphDestroy(graph);
	return t;
}

/* bytes and ops: the least that the verb must move and compute; best_ops: of this GPU a second. */
template <class F> static void verb(const char *name, int T, double bytes, double ops, double best_ops, F call)
{
	double t, move = bytes / read_ceiling, compute = ops / best_ops;
	bool reads = move >= compute;
	char at[32];

	snprintf(at, sizeof(at), "%d tokens", T);
	json_begin_verb(name, at);
	if (no_time()) {
		fprintf(json, ", \"skipped\": \"%s\"}", no_time());
		return;
	}
	b->d.product.made_for = NULL;
	t = in_graph(call);
	b->d.product.made_for = NULL;
	fprintf(json, ", \"tokens\": %d, \"verb_us\": %.9g, \"rate\": %.5g, \"unit\": \"%s\", \"best\": %.5g, "
		"\"of_best\": %.5g}", T, t * 1e6, (reads ? bytes * 1e-9 : ops * 1e-12) / t, reads ? "GB/s" : "TFLOP/s",
		reads ? read_ceiling * 1e-9 : best_ops * 1e-12, (reads ? move : compute) / t);
	fflush(json);
}

/* made: x is there in the form that w wants, as the norm or the activation before it leaves it. */
static void product_verb(const char *name, int T, enum place y, enum place x, struct weight *net_layer::*which, bool made)
{
	const struct weight *w = b->net.layer[0].*which;
	bool e4m3 = wants_x8(&b->d, w, T);
	int l = 0;

	verb(name, T, weight_size(w) + 2.0 * T * (w->n + w->k), 2.0 * w->n * w->k * T, e4m3 ? mma8_ceiling : mma_ceiling, [&] {
		const struct weight *next = b->net.layer[l++ % b->m.n_layers].*which;

		b->d.product.made_for = made && e4m3 ? next : NULL;
		matmul(&b->d, y, x, next, T);
	});
}

/* Of the last layer and what follows: R rows. */
static void head_verbs(int R)
{
	const struct weight *head = b->net.head ? b->net.head : b->net.embed;
	const double D = sc->D, V = sc->V;
	struct dev *d = &b->d;

	verb("last norm", R, 10 * R * D, 0, 1, [&] { pick_norm(d, b->net.norm, SR_RMS, b->m.eps, 0, R); });
	verb("head", R, weight_size(head) + R * (2 * D + 4 * V), 2 * D * V * R, mma_ceiling, [&] {
		d->product.made_for = NULL;
		matmul(d, P_LOGITS, P_Y, head, R);
	});
	verb("sample, greedy", R, 4 * R * V, 0, 1, [&] { sample(d, 0, 0, R); });
}

/* T tokens.  attend_*: of one layer. */
static void verbs_of(int T, double attend_bytes, double attend_ops)
{
	const struct sr_attn *heads = &b->m.kind[0];
	const double D = sc->D, qkv = (sc->H + 2 * sc->G) * sc->E;
	struct net_layer *y = b->net.layer;
	struct dev *d = &b->d;
	int l = 0;

	verb("begin", T, 0, 0, 1, [&] { step_begin(d); });
	verb("angles", T, 0, 0, 1, [&] { angles(d, T); });
	verb("embed", T, 6 * T * D, 0, 1, [&] { embed(d, b->net.embed, 1, T); });
	verb("norm", T, 10 * T * D, 0, 1, [&] {
		add_norm(d, 0, NULL, y[l++ % b->m.n_layers].norm1, SR_RMS, b->m.eps, 1, T);
	});
	product_verb("q, k, v", T, P_QKV, P_Y, &net_layer::qkv, true);
	verb("rope and store", T, 4 * T * qkv, 0, 1, [&] {
		rope_store(d, l++ % b->m.n_layers, heads, NULL, NULL, b->m.eps, T);
	});
	verb("attention", T, attend_bytes, attend_ops, mma_ceiling, [&] { attend(d, l++ % b->m.n_layers, heads, NULL, T); });
	product_verb("o", T, P_Z, P_A, &net_layer::o, false);
	product_verb("gate and up", T, P_GU, P_Y, &net_layer::gu, true);
	verb("activation", T, 6.0 * T * sc->F, 0, 1, [&] { act_mul(d, SR_GATED, SR_SILU, 0, sc->F, T); });
	product_verb("down", T, P_Z, P_ACT, &net_layer::down, true);
}

static void verbs()
{
	int32_t contexts[256];

	for (int i = 0; i < 5; i++) {
		int T = sc->verb_rows[i], n = i < 4 ? T : 1;
		struct sr_batch *a = batch(b, 0);

		for (int s = 0; s < n; s++)
			contexts[s] = i < 4 ? VERB_CONTEXT : T;
		if (no_time() || !begin_slots(contexts, n, false))
			continue;            /* verbs.awk names lines that are not there */
		begin(a);
		for (int s = 0; s < n; s++)
			add_row(a, s, i < 4 ? VERB_CONTEXT - 1 : 0, i < 4 ? 1 : T, 5);
		launch_and_wait(0);          /* its lists stay on the device */
		if (i < 4) {
			verbs_of(T, kv_bytes((int64_t)n * VERB_CONTEXT), 0);
			head_verbs(T);
		} else {
			verbs_of(T, 4.0 * T * sc->G * sc->E, prompt_attention(T) / b->m.n_layers);
		}
	}
}

#endif
