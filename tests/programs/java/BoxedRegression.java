// SPDX-License-Identifier: GPL-2.0-or-later

import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/**
 * Linear regression by gradient descent over samples of boxed numbers, as data sets held
 * in collections are: every step walks all objects and makes short-lived ones.
 */
final class BoxedRegression {
    private static final int FEATURES = 8;

    private static final class Sample {
        final List<Double> features = new ArrayList<>(FEATURES);
        final Double target;

        Sample(Random random, double[] truth) {
            double sum = 0;

            for (int i = 0; i < FEATURES; i++) {
                double x = random.nextInt(1000) / 1000.0 - 0.5;

                features.add(Double.valueOf(x));
                sum += truth[i] * x;
            }
            target = Double.valueOf(sum);
        }
    }

    private static List<Double> step(List<Sample> samples, List<Double> weights, double rate) {
        double[] gradient = new double[FEATURES];
        List<Double> next = new ArrayList<>(FEATURES);

        for (Sample s : samples) {
            List<Double> terms = new ArrayList<>(FEATURES);
            double error = -s.target;

            for (int i = 0; i < FEATURES; i++) {
                terms.add(Double.valueOf(weights.get(i) * s.features.get(i)));
            }
            for (Double t : terms) {
                error += t;
            }
            for (int i = 0; i < FEATURES; i++) {
                gradient[i] += error * s.features.get(i);
            }
        }
        for (int i = 0; i < FEATURES; i++) {
            next.add(weights.get(i) - rate * gradient[i] / samples.size());
        }
        return next;
    }

    public static void main(String[] argv) {
        if (argv.length != 2) {
            System.err.println("usage: BoxedRegression SAMPLES STEPS");
            System.exit(2);
        }
        Random random = new Random(11);
        double[] truth = new double[FEATURES];
        int count = Integer.parseInt(argv[0]);
        List<Sample> samples = new ArrayList<>(count);
        List<Double> weights = new ArrayList<>(FEATURES);

        for (int i = 0; i < FEATURES; i++) {
            truth[i] = random.nextInt(100) / 10.0;
            weights.add(Double.valueOf(0));
        }
        for (int i = 0; i < count; i++) {
            samples.add(new Sample(random, truth));
        }
        for (int i = 0; i < Integer.parseInt(argv[1]); i++) {
            weights = step(samples, weights, 4.0);
        }
        // Java's floating point is the same everywhere: so must every digit be.
        System.out.println("weights " + weights);
    }
}
