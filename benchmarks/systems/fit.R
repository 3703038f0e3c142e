# Rscript fit.R FOLDER METHOD N COLUMNS LEVEL COST SIGMA REPEATS PENALISED
# reads x.bin (by column) and y.bin, doubles; writes fitted.bin and facts.txt: seconds, penalty, version, note
arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]; method <- arguments[2]
n <- as.integer(arguments[3]); columns <- as.integer(arguments[4])
level <- as.numeric(arguments[5]); cost <- as.numeric(arguments[6])
sigma <- as.numeric(arguments[7]); repeats <- as.integer(arguments[8])
penalised <- as.integer(arguments[9])  # so many first coefficients; an intercept comes last
x <- matrix(readBin(file.path(folder, "x.bin"), "double", n * columns), n, columns)
y <- readBin(file.path(folder, "y.bin"), "double", n)

package <- c(kqr = "kernlab", fn = "quantreg", pfn = "quantreg", pfnb = "quantreg", conquer = "conquer")[[method]]
if (!suppressMessages(requireNamespace(package, quietly = TRUE))) quit(status = 3)

fit <- switch(method,
  kqr = function() kernlab::kqr(x, y, scaled = FALSE, tau = level, C = cost, kernel = "rbfdot",
                                kpar = list(sigma = sigma), fit = FALSE),
  fn = function() quantreg::rq.fit.fnb(x, y, tau = level),
  pfn = function() quantreg::rq.fit.pfn(x, y, tau = level),
  pfnb = function() quantreg::rq.fit.pfnb(x, y, tau = level),
  conquer = function() conquer::conquer(x, y, tau = level)
)
said <- character(0)
seconds <- Inf
begin <- Sys.time()
for (k in seq_len(repeats)) {
  if (k > 1 && difftime(Sys.time(), begin, units = "secs") > 10) break  # what takes long is not run again
  set.seed(1)
  start <- Sys.time()
  model <- withCallingHandlers(fit(), warning = function(w) {
    said <<- c(said, conditionMessage(w)); invokeRestart("muffleWarning")
  })
  seconds <- min(seconds, as.numeric(difftime(Sys.time(), start, units = "secs")))
}
if (method == "kqr") {
  fitted <- as.vector(kernlab::predict(model, x))
  weights <- as.vector(kernlab::alpha(model))
  K <- kernlab::kernelMatrix(kernlab::rbfdot(sigma = sigma), x)
  penalty <- sum(weights * (K %*% weights))
} else if (method == "conquer") {
  fitted <- as.vector(x %*% model$coeff[-1] + model$coeff[1])
  penalty <- sum(model$coeff[-1]^2)
} else {
  fitted <- as.vector(x %*% model$coefficients)
  penalty <- sum(model$coefficients[seq_len(penalised)]^2)
}
writeBin(fitted, file.path(folder, "fitted.bin"))
blas <- if (grepl("openblas", La_library(), ignore.case = TRUE)) "OpenBLAS" else basename(La_library())
version <- paste0(packageVersion(package), " (R ", getRversion(), ", ", blas, ")")
writeLines(c(format(seconds, digits = 17), format(penalty, digits = 17), version, paste(unique(said), collapse = "; ")),
           file.path(folder, "facts.txt"))
