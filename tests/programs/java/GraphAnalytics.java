// SPDX-License-Identifier: GPL-2.0-or-later

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/**
 * Analytics over a graph of objects: label propagation into connected components and
 * breadth-first distances, each round boxing its messages as such frameworks do.
 */
final class GraphAnalytics {
    private static final class Vertex {
        final int id;
        final List<Vertex> edges = new ArrayList<>();
        Integer label;
        int distance;

        Vertex(int id) {
            this.id = id;
        }
    }

    private final Vertex[] vertices;
    private long digest;

    private GraphAnalytics(int count, int degree) {
        Random random = new Random(7);

        vertices = new Vertex[count];
        for (int i = 0; i < count; i++) {
            vertices[i] = new Vertex(i);
        }
        // Islands of 4096 vertices, so that components are known and not one.
        for (Vertex v : vertices) {
            int island = v.id / 4096 * 4096;
            int size = Math.min(4096, count - island);

            v.edges.add(vertices[island + (v.id - island + 1) % size]);
            for (int k = 1; k < degree; k++) {
                v.edges.add(vertices[island + random.nextInt(size)]);
            }
        }
    }

    /** Lowest label within reach, pushed along the edges until nothing changes or @rounds. */
    private void components(int rounds) {
        for (Vertex v : vertices) {
            v.label = Integer.valueOf(v.id);
        }
        for (int r = 0; r < rounds; r++) {
            Integer[] messages = new Integer[vertices.length];
            boolean changed = false;

            Arrays.fill(messages, null);
            for (Vertex v : vertices) {
                for (Vertex to : v.edges) {
                    Integer had = messages[to.id];

                    if (had == null || v.label.compareTo(had) < 0) {
                        messages[to.id] = Integer.valueOf(v.label.intValue());
                    }
                }
            }
            for (Vertex v : vertices) {
                Integer m = messages[v.id];

                if (m != null && m.compareTo(v.label) < 0) {
                    v.label = m;
                    changed = true;
                }
            }
            if (!changed) {
                break;
            }
        }
        for (Vertex v : vertices) {
            if (v.label.intValue() / 4096 != v.id / 4096) {
                throw new IllegalStateException("vertex " + v.id + ": label " + v.label);
            }
            digest = digest * 31 + v.label.intValue();
        }
    }

    private void distances() {
        ArrayDeque<Vertex> queue = new ArrayDeque<>();

        for (Vertex v : vertices) {
            v.distance = -1;
        }
        for (int root = 0; root < vertices.length; root += 4096) {
            vertices[root].distance = 0;
            queue.add(vertices[root]);
            while (!queue.isEmpty()) {
                Vertex v = queue.remove();

                for (Vertex to : v.edges) {
                    if (to.distance < 0) {
                        to.distance = v.distance + 1;
                        queue.add(to);
                    }
                }
            }
        }
        for (Vertex v : vertices) {
            if (v.distance < 0) {
                throw new IllegalStateException("vertex " + v.id + ": not reached");
            }
            digest = digest * 31 + v.distance;
        }
    }

    public static void main(String[] argv) {
        if (argv.length != 2) {
            System.err.println("usage: GraphAnalytics VERTICES REPEATS");
            System.exit(2);
        }
        GraphAnalytics g = new GraphAnalytics(Integer.parseInt(argv[0]), 8);

        for (int i = 0; i < Integer.parseInt(argv[1]); i++) {
            g.components(8);
            g.distances();
        }
        System.out.println("digest " + g.digest);
    }
}
